"""The process of a machine: who has broken its kernel and QEMU's devices has what this process has, and no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.escape.conftest import AT_MACHINES, Inside, Witness, machine_of

from proofbox.host.threads import descendants

pytestmark = [AT_MACHINES, pytest.mark.always("microvm")]  # a user's too: only here it matters who started it

KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
OWN = ("anon_inode:", "socket:", "pipe:", "/memfd:", "/dev/null", "/dev/kvm")
"""Beside images: what a process makes for itself, or is given by us."""


def qemu(inside: Inside) -> Path:
    """Its directory in /proc."""
    for pid in descendants(machine_of(inside.box).pid):
        if "qemu" in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]:
            return Path(f"/proc/{pid}")
    raise AssertionError("no QEMU runs")


async def test_it_can_gain_nothing(inside: Inside) -> None:
    """Every thread: no capability, none to be had, no way to get any, two filters, and nobody's user and groups."""
    for task in (qemu(inside) / "task").iterdir():
        lines = (task / "status").read_text().splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert status[name] == ["0" * 16], name
        assert (status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"]) == (["1"], ["2"], ["2"])
        if os.geteuid() == 0:
            assert status["Groups"] == []
            assert len(set(status["Uid"] + status["Gid"])) == 1
            assert int(status["Uid"][0]) >= 65536


async def test_it_sees_nothing_of_the_host(inside: Inside, witness: Witness) -> None:
    """Namespaces of its own, a root of a handful of read-only files, no process but its own, no way out by network."""
    process = qemu(inside)
    try:
        root = process / "root"
        seen = {name: sorted(os.listdir(root / name)) for name in ("", "proc", "usr")}
    except PermissionError:
        pytest.skip("only root may look into another user's process")
    shared = [kind for kind in KINDS if os.readlink(process / "ns" / kind) == os.readlink(f"/proc/self/ns/{kind}")]
    assert shared == (["user"] if os.geteuid() == 0 else [])  # root's QEMU is a user of nobody's, without a namespace
    assert {*seen[""]} <= {"dev", "lib", "lib32", "lib64", "machine", "proc", "usr"}
    assert len([name for name in seen["proc"] if name.isdigit()]) <= 2
    assert not (root / str(witness.file)[1:]).exists()
    assert not (root / "etc").exists()
    mounts = [line.split() for line in (process / "mounts").read_text().splitlines()]
    assert [mount[1] for mount in mounts if "ro" not in mount[3].split(",") and mount[1] != "/proc"] == []
    devices = (process / "net/dev").read_text().splitlines()[2:]
    assert [line.partition(":")[0].strip() for line in devices] == ["lo"]
    routes = (process / "net/route").read_text().splitlines()[1:]
    assert routes == []


async def test_it_holds_nothing_of_the_host(inside: Inside) -> None:
    """Its descriptors are sockets to us, memory, and images that it can only read."""
    process = qemu(inside)
    found: dict[str, str] = {}
    try:
        for entry in (process / "fd").iterdir():
            target = os.readlink(entry)
            flags = int((process / "fdinfo" / entry.name).read_text().split("flags:")[1].split()[0], 8)
            if not target.startswith(OWN):
                found[target] = "read" if flags & os.O_ACCMODE == os.O_RDONLY else "written"
    except PermissionError:
        pytest.skip("only root may look into another user's process")
    assert set(found.values()) == {"read"}
    assert set(found) == {"/machine/image0"}
