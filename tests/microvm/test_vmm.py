"""The process of a virtual machine: its confinement, its end, and what is told of one that does not boot."""

from __future__ import annotations

import os
import random
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.microvm.conftest import StartMachine, confined

from proofbox.errors import CreateFailed
from proofbox.runtimes.microvm import vmm
from proofbox.runtimes.microvm.machine import IMAGE, Machine
from proofbox.runtimes.microvm.ports import last_words
from proofbox.runtimes.microvm.qemu import Qemu
from proofbox.runtimes.microvm.vmm import Confined
from proofbox.testing.orphans import adopting, children, settled

pytestmark = pytest.mark.container

CLIENT = """
import os, socket, sys, time, msgspec
from pathlib import Path
from tests.microvm.conftest import confined
from proofbox.runtimes.microvm import vmm
from proofbox.runtimes.microvm.qemu import find_qemu

qemu = find_qemu()
machine = vmm.Machine(Path(sys.argv[1]), Path(sys.argv[2]), "console=ttyS0 quiet", 128 << 20)
where = confined()
print("ready", flush=True)
while True:
    near, far = socket.socketpair()
    vm = vmm.start(qemu, machine, where, [far])
    far.close()
    time.sleep(float(sys.argv[3]))
    vm.process.terminate()
    vm.process.wait()
    vm.close()
"""


async def test_panic_is_told_and_the_fallback_machine_boots(bare: Machine, start: StartMachine) -> None:
    """The console's last words come on the channel, and QEMU has ended by itself. The usual one: ``test_accel``."""
    started = await start(replace(bare, cmdline=f"{bare.cmdline} panic=-1", machine="q35"))
    assert "Kernel panic - not syncing" in await started.last_words()
    assert await started.vm.exited() == 0


async def test_what_is_not_there_is_named(bare: Machine, start: StartMachine) -> None:
    """A disk is opened by the client, an image where QEMU is to see it; either says which one it was."""
    with pytest.raises(CreateFailed, match="disk /no/such/disk of a virtual machine: No such file"):
        await start(replace(bare, disk=Path("/no/such/disk")))
    started = await start(replace(bare, images=(Path("/no/such/image"),)))
    assert "open: /no/such/image: No such file" in await started.last_words()


@pytest.mark.parametrize("alone", [True, False])
async def test_who_takes_qemu_over_writes_no_image(bare: Machine, qemu: Qemu, tmp_path: Path, alone: bool) -> None:
    """Also where it is the user who owns the image, as without lent ids: that one may change its mode anywhere else."""
    image, made = tmp_path / "image", tmp_path / "taken"
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(0o755)
    image.write_bytes(bytes(8192))
    image.chmod(0o444)
    source = Path(__file__).with_name("taken.c")
    words = [os.environ.get("CC", "cc"), "-static", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(made)]
    await anyio.run_process(words)
    taken = replace(qemu, path=str(made), shown=(str(made),))
    near, far = socket.socketpair()
    with closing(near), far:
        vm = vmm.start(taken, replace(bare, images=(image,)), Confined() if alone else confined(), [far])
        with closing(vm), anyio.fail_after(60):
            await vm.exited()
        assert "read: 1, written: 0" in last_words(near)
    assert (image.read_bytes(), image.stat().st_mode & 0o777) == (bytes(8192), 0o444)


async def test_what_qemu_says_is_told(bare: Machine, start: StartMachine, tmp_path: Path) -> None:
    """A file that is no kernel: QEMU's own complaint comes on the channel."""
    (tmp_path / "kernel").write_bytes(b"no kernel" * 1000)
    started = await start(replace(bare, kernel=tmp_path / "kernel"))
    assert "kernel" in await started.last_words()
    assert await started.vm.exited() == 1 << 8


async def test_qemu_sees_and_may_nothing(bare: Machine, start: StartMachine) -> None:
    """An empty root, a user of its own without groups and capabilities, filtered system calls, own namespaces."""
    started = await start(bare)
    pid = await started.inside()
    await started.until(partial(_is_filtered, pid))
    status = _status(pid)
    assert status["NoNewPrivs"] == "1"
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    if os.geteuid() == 0:
        assert "0" not in status["Uid"].split()
        assert status["Groups"] == ""
        assert sorted(os.listdir(f"/proc/{pid}/root")) == ["lib", "lib64", "machine", "proc", "usr"]
        assert os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY
        assert {os.readlink(f"/proc/{pid}/ns/{each}") for each in ("net", "ipc", "uts", "pid", "mnt")}.isdisjoint(
            os.readlink(f"/proc/self/ns/{each}") for each in ("net", "ipc", "uts", "pid", "mnt")
        )


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_many_machines_share_a_read_only_image(bare: Machine, start: StartMachine, tmp_path: Path) -> None:
    """No lock is in the way, and QEMU cannot write it even if it wanted to."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    for path in (image, disk):
        path.write_bytes(bytes(1 << 20))
    machine = replace(bare, images=(image,), disk=disk)
    expected: dict[str, set[int] | None] = {f"{IMAGE}0": {os.O_RDONLY}, str(disk): {os.O_RDWR}}
    for started in (await start(machine), await start(replace(machine, disk=None))):
        pid = await started.inside()
        if os.geteuid() != 0:  # it is another user's: that it runs is what can be seen
            await started.until(partial(_is_filtered, pid))
            continue
        await started.until(partial(_has_its_image, pid))
        opened = _opened(pid)
        assert {path: opened.get(path) for path in expected} == expected
        expected[str(disk)] = None


def _is_filtered(pid: int) -> bool:
    """By our filter, and by its own, which it loads a moment after its start."""
    return _status(pid)["Seccomp_filters"] == "2"


def _has_its_image(pid: int) -> bool:
    """As it has when all of the machine is made."""
    return f"{IMAGE}0" in _opened(pid)


def _opened(pid: int) -> dict[str, set[int]]:
    """Files of the process, with the ways in which they are open."""
    found: dict[str, set[int]] = {}
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            flags = next(line for line in entry.read_text().splitlines() if line.startswith("flags:"))
            target = os.readlink(f"/proc/{pid}/fd/{entry.name}")
        except OSError:
            continue
        found.setdefault(target, set()).add(int(flags.split()[1], 8) & os.O_ACCMODE)
    return found


async def test_stop_leaves_no_process(bare: Machine, start: StartMachine) -> None:
    """At any time, twice, and also where the one who waits for it gives up."""
    started = await start(bare)
    pid = await started.inside()
    with anyio.move_on_after(0.01):
        await started.vm.exited()
    await started.vm.stop()
    await started.vm.stop()
    assert not Path(f"/proc/{pid}").exists()


def test_killed_client_leaves_no_process(qemu: Qemu, bare: Machine) -> None:
    """``kill -9`` of the client at random instants, while it makes machines and ends them."""
    chance, before = random.Random(5), children()
    for number in range(5):
        words = [sys.executable, "-c", CLIENT, str(bare.kernel), str(bare.initramfs), str(0.01 * number)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with adopting(), subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.06))
            client.kill()
            client.wait()
            left = settled(before, 20.0)
        assert left == {}
