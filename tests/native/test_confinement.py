"""What the inside of a native sandbox may do and see, tried from the inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.native.conftest import OpenBox

from proofbox.host.confinement import confinement
from proofbox.kit.binary import guest_path
from proofbox.model.limits import Limits
from proofbox.model.spec import Volume
from proofbox.model.template import Layer, Template

pytestmark = [pytest.mark.anyio, pytest.mark.container]


async def test_only_named_capabilities_stay(open_box: OpenBox) -> None:
    """In every set, of the sandbox's root; a program that it starts gets no others; nothing raises privileges."""
    wanted = f"{confinement().capability_mask():016x}"
    async with open_box() as box:
        _, status = await box.run("cat /proc/self/status")
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert found["CapBnd"] == found["CapEff"] == found["CapPrm"] == wanted
    assert found["CapInh"] == found["CapAmb"] == "0" * 16
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"


async def test_no_descriptor_but_its_own_is_open(open_box: OpenBox) -> None:
    """What the launcher holds (the other sandboxes' sockets, the host's directories) is seen by no command."""
    async with open_box(name="one"), open_box(name="two") as box:
        _, listed = await box.run("ls /proc/self/fd")
    assert set(listed.split()) <= {"0", "1", "2", "3"}


async def test_hidden_parts_of_proc(open_box: OpenBox) -> None:
    """A masked file reads as empty, a masked directory has nothing in it, a read-only one cannot be written by root."""
    async with open_box() as box:
        for path in confinement().masked:
            code, output = await box.run(
                f"p=/proc/{path}; if [ -d $p ]; then ls -A $p; elif [ -e $p ]; then cat $p; fi"
            )
            assert (code, output) == (0, ""), path
        _, mounts = await box.run("cat /proc/mounts")
        options = {line.split()[1]: line.split()[3].split(",") for line in mounts.splitlines()}
        for path in confinement().readonly:
            code, _ = await box.run(f"test -d /proc/{path}")
            assert code != 0 or "ro" in options[f"/proc/{path}"], path


async def test_devices(open_box: OpenBox) -> None:
    """The few that programs need work; others cannot be made; shared memory and terminals are there."""
    async with open_box() as box:
        code, output = await box.run(
            "set -e; echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; "
            "! echo x > /dev/full; ! mknod /tmp/sda b 8 0; echo s > /dev/shm/s; "
            "python3 -I -S -c 'import os; m, s = os.openpty(); print(os.ttyname(s))'"
        )
    assert code == 0, output
    assert output.splitlines()[:2] == ["4", "4"]
    assert output.splitlines()[-1].startswith("/dev/pts/")


async def test_the_hosts_mounts_are_gone(open_box: OpenBox) -> None:
    """Nothing but what the sandbox was given is in its mount table."""
    async with open_box() as box:
        _, mounts = await box.run("cut -d' ' -f2 /proc/self/mounts")
        places = set(mounts.split())
        assert {place for place in places if not place.startswith(("/proc", "/dev"))} == {"/", "/usr"}


async def test_disk_and_inodes_are_limited(open_box: OpenBox) -> None:
    """In the root, in another layer's target, in shared memory and in /dev: all of it is one writable layer."""
    async with open_box(limits=Limits(disk=4 << 20, inodes=100)) as box:
        for place in ("/tmp", "/usr", "/dev/shm", "/dev"):
            _, output = await box.run(f"head -c 5M /dev/zero > {place}/big")
            assert "No space left" in output
            _, size = await box.run(f"stat -c %s {place}/big && rm {place}/big")
            assert int(size) <= 4 << 20
        _, output = await box.run("cd /tmp; for i in $(seq 200); do echo > f$i; done 2>&1; ls | wc -l")
        assert int(output.split()[-1]) <= 100 + 64


async def test_layers_are_written_only_in_the_sandbox(open_box: OpenBox, tmp_path: Path) -> None:
    """Its root changes and removes files of a layer; the layer on the host stays; the next sandbox sees the layer."""
    layer = tmp_path / "layer"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc/file").write_text("of the layer")
    (layer / "etc/gone").write_text("x")
    base = tmp_path / "root"
    stacked = Template(
        digest="", name="t", layers=(Layer("/", str(layer)), Layer("/", str(base)), Layer("/usr", "/usr")), env={}
    )
    for _ in range(2):
        async with open_box(template=stacked) as box:
            _, output = await box.run("cat /etc/file; ls /etc; echo new > /etc/file; rm /etc/gone; cat /etc/file")
            assert output == "of the layerfile\ngone\ngroup\npasswd\nnew\n"
    assert (layer / "etc/file").read_text() == "of the layer"


async def test_a_volume_is_read_only(open_box: OpenBox, tmp_path: Path) -> None:
    """Root inside can neither write it nor mount it again."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("data")
    (shared / "data").chmod(0o666)
    volumes = (Volume(str(shared), "/mnt/deep/shared"), Volume(str(shared / "data"), "/mnt/file"))
    async with open_box(volumes=volumes) as box:
        assert await box.run("cat /mnt/deep/shared/data /mnt/file") == (0, "datadata")
        for attempt in ("echo x > /mnt/deep/shared/data", "echo x > /mnt/file", ": > /mnt/deep/shared/new"):
            code, output = await box.run(attempt)
            assert code != 0
            assert "Read-only file system" in output
        assert (await box.run("mount -o remount,rw /mnt/deep/shared"))[0] != 0
    assert (shared / "data").read_text() == "data"


@pytest.mark.skipif(os.geteuid() != 0, reason="a full id range needs root")
async def test_ids_of_the_host_are_not_those_inside(open_box: OpenBox, tmp_path: Path) -> None:
    """Root inside is nobody outside; root's files in a layer are root's inside; other users exist."""
    async with open_box() as box:
        _, output = await box.run("stat -c '%u %g' /etc/passwd /usr/bin/env; id -u; cat /proc/self/uid_map")
        *owners, uid, id_map = output.splitlines()
        assert (owners, uid) == (["0 0", "0 0"], "0")
        assert id_map.split() == ["0", str(box.handle.id_base), "65536"]
        assert box.handle.id_base >= 0x2000_0000
        assert await box.run("id -u; touch /tmp/mine; stat -c %U /tmp/mine", user=b"ada") == (0, "1000\nada\n")
        assert (await box.run("touch /etc/mine", user=b"ada"))[0] != 0


async def test_loopback_is_up_and_alone(open_box: OpenBox) -> None:
    """One interface, up; the host name is the one that was asked for."""
    async with open_box(hostname="here") as box:
        code, output = await box.run(
            'hostname; python3 -I -S -c \'import socket; s = socket.create_server(("127.0.0.1", 0)); '
            "socket.create_connection(s.getsockname()); print(socket.if_nameindex())'"
        )
    assert (code, output) == (0, "here\n[(1, 'lo')]\n")


async def test_the_hosts_network_brings_its_names(open_box: OpenBox) -> None:
    """What names are asked of, and the host's own table, are the host's; they cannot be written, whatever was there."""
    async with open_box(network="host") as box:
        for name in ("/etc/resolv.conf", "/etc/hosts"):
            assert (await box.run(f"cat {name}"))[1] == Path(name).read_text()
            assert (await box.run(f"echo >> {name}"))[0] != 0


async def test_no_path_of_the_host_is_told(open_box: OpenBox, tmp_path: Path) -> None:
    """Neither where the guest program lies, nor where the template does."""
    async with open_box() as box:
        _, told = await box.run("cat /proc/1/cmdline /proc/1/comm /proc/1/stat /proc/self/mountinfo | tr '\\0' ' '")
    assert "proofbox-guest" in told
    assert str(guest_path().parent) not in told
    assert tmp_path.name not in told
