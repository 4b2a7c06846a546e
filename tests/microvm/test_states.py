"""Machines that go on from a saved state, and what becomes of states that are not as they were written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socketpair

import anyio
import pytest
from tests.microvm.conftest import PATIENCE, Started, confined

from proofbox.model.limits import MIB
from proofbox.runtimes.microvm import states, vmm
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.qemu import Qemu
from proofbox.runtimes.microvm.states import States
from proofbox.runtimes.microvm.vmm import State, Vmm
from proofbox.testing.orphans import adopting, children, settled

pytestmark = pytest.mark.container

UNPACKED: int = 40 * MIB
"""Bytes of memory that a kernel has taken when it runs: before, the firmware is still about to load it."""


class Booted(Exception):
    """A machine would have been booted."""


async def refuse(_: int) -> Vmm:
    """Where no machine is to be booted, or only the attempt counts."""
    raise Booted


@dataclass(frozen=True, slots=True)
class Kept:
    """A state on the disk, and the machine that it is of: one that ends by itself, when its kernel misses a program."""

    directory: Path
    machine: Machine
    text: str

    @property
    def place(self) -> Path:
        """Where it is."""
        return next(self.directory.iterdir())


def booting(
    qemu: Qemu, machine: Machine, stack: ExitStack, unpacked: int = UNPACKED
) -> Callable[[int], Awaitable[Vmm]]:
    """Starts it, and waits until its kernel runs."""

    async def boot(memory: int) -> Vmm:
        near, far = socketpair()
        stack.enter_context(near)
        with far:
            vm = vmm.start(qemu, machine, confined(), [far], memory=memory)
        try:
            with anyio.fail_after(PATIENCE):
                while os.fstat(memory).st_blocks * 512 < unpacked:  # noqa: ASYNC110 - nobody tells of it
                    await anyio.sleep(0.005)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await vm.stop()
            vm.close()
            raise
        return vm

    return boot


@pytest.fixture(scope="module")
async def kept(qemu: Qemu, bare: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Saved once for all tests, and written to the disk."""
    machine = replace(bare, cmdline=f"{bare.cmdline} panic=-1 reboot=t")
    directory = tmp_path_factory.mktemp("kept")
    text = states.about(qemu, machine)
    with closing(States(directory)) as found, ExitStack() as stack:
        assert await found.get(text, machine, booting(qemu, machine, stack)) is not None
    for thread in threading.enumerate():
        if thread.name == states.WRITER:
            thread.join()
    return Kept(directory, machine, text)


def copied(kept: Kept, directory: Path) -> Kept:
    """One of its own for a test that damages it."""
    subprocess.run(["cp", "-r", "--sparse=always", kept.directory, directory / "copy"], check=True)
    return replace(kept, directory=directory / "copy")


async def test_machines_go_on_from_one_state(qemu: Qemu, kept: Kept) -> None:
    """Two at once, each to the end that the saved one would have come to; and no file of the kernel is needed."""
    machine = replace(kept.machine, kernel=Path("/no/kernel"), initramfs=Path("/no/initramfs"))
    told = []
    with closing(States(kept.directory)) as found:
        state = await found.get(kept.text, kept.machine, refuse)
        assert state is not None
        async with anyio.create_task_group() as group:

            async def follow() -> None:
                told.append(await _last_words(qemu, machine, state))

            group.start_soon(follow)
            group.start_soon(follow)
    assert ["Kernel panic - not syncing" in each for each in told] == [True, True], told


async def _last_words(qemu: Qemu, machine: Machine, state: State) -> str:
    near, far = socketpair()
    near.setblocking(False)
    with near:
        with far:
            vm = vmm.start(qemu, machine, confined(), [far], state=state)
        try:
            return await Started(vm, near).last_words()
        finally:
            with anyio.CancelScope(shield=True):
                await vm.stop()
            vm.close()


async def test_state_cannot_be_changed_by_a_machine(kept: Kept) -> None:
    """Its memory is closed for writers: one machine must not reach another one through it."""
    with closing(States(kept.directory)) as found:
        state = await found.get(kept.text, kept.machine, refuse)
        assert state is not None
        with pytest.raises(PermissionError):
            os.pwrite(state.memory, b"x", 0)
        writable = os.open(f"/proc/self/fd/{state.memory}", os.O_RDWR)
        with os.fdopen(writable, "r+b", buffering=0) as file, pytest.raises(PermissionError):
            file.write(b"x")


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit of the devices": lambda place: _flip(place / "devices", 1000),
    "a bit of the memory": lambda place: _flip(place / "memory", 17 * MIB),
    "memory that is too short": lambda place: os.truncate(place / "memory", 64 * MIB),
    "no devices": lambda place: (place / "devices").unlink(),
    "devices that cannot be read": lambda place: _hide(place / "devices"),
    "half a record": lambda place: os.truncate(place / "record", 20),
    "another machine": lambda place: _replace(place / "record", b"panic=-1", b"panic=-2"),
}


def _hide(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _replace(path: Path, old: bytes, new: bytes) -> None:
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_state_is_never_used(kept: Kept, tmp_path: Path, damage: str) -> None:
    """It is removed, and a machine is booted for a new one."""
    mine = copied(kept, tmp_path)
    place = mine.place
    DAMAGES[damage](place)
    with closing(States(mine.directory)) as found, pytest.raises(Booted):
        await found.get(mine.text, mine.machine, refuse)
    assert not place.exists()


@pytest.mark.parametrize("other", ["memory", "kernel", "cmdline"])
async def test_state_is_of_one_machine_only(qemu: Qemu, kept: Kept, tmp_path: Path, other: str) -> None:
    """Whatever is different, the state is not taken for it, and stays for its own."""
    kernel = tmp_path / "kernel"
    kernel.write_bytes(b"another")
    machine = {
        "memory": replace(kept.machine, memory=kept.machine.memory + MIB),
        "kernel": replace(kept.machine, kernel=kernel),
        "cmdline": replace(kept.machine, cmdline="quiet"),
    }[other]
    with closing(States(kept.directory)) as found, pytest.raises(Booted):
        await found.get(states.about(qemu, machine), machine, refuse)
    assert kept.place.exists()


async def test_cancelled_while_it_is_made(qemu: Qemu, kept: Kept, tmp_path: Path) -> None:
    """No process is left and no state, and the next one can make it."""
    before = children()
    with adopting(), closing(States(tmp_path)) as found, ExitStack() as stack:
        with anyio.move_on_after(0.3) as late:
            await found.get(kept.text, kept.machine, booting(qemu, kept.machine, stack, kept.machine.memory))
        assert late.cancelled_caught
        assert settled(before, 20.0) == {}
        with pytest.raises(Booted):
            await found.get(kept.text, kept.machine, refuse)
    assert list(tmp_path.iterdir()) == []


async def test_only_the_last_used_ones_are_kept(
    qemu: Qemu, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody used for longest is removed when a new one is written."""
    monkeypatch.setattr(states, "KEPT", 2)
    for number, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (number, number))
    with closing(States(kept.directory)) as found:
        state = await found.get(kept.text, kept.machine, refuse)
        assert state is not None
        states.keep(tmp_path, kept.text, replace(state, memory=os.dup(state.memory)))
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {"second", kept.place.name}
    with closing(States(tmp_path)) as found:
        assert await found.get(kept.text, kept.machine, refuse) is not None
    shutil.rmtree(tmp_path)


def test_a_maker_that_is_killed_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    """With ``kill -9``, when all is written and nothing has its name yet; whatever the clock says."""
    program = """
import os, signal, sys
from pathlib import Path
from proofbox.runtimes.microvm import states
from proofbox.runtimes.microvm.vmm import State
states.sync_directory = lambda path: os.kill(os.getpid(), signal.SIGKILL)
memory = os.memfd_create("memory")
os.write(memory, b"x" * 1_000_000)
states.keep(Path(sys.argv[1]), "text", State(memory, b"devices"))
"""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    done = subprocess.run([sys.executable, "-c", program, home / "machines/states"], check=False)
    assert done.returncode == -signal.SIGKILL
    (made,) = (home / "machines/making").glob("*/memory")
    os.utime(made.parent, (2**33, 2**33))
    start = "from proofbox.templates.store import open_store; open_store()"
    subprocess.run([sys.executable, "-c", start], env=os.environ | {"PROOFBOX_HOME": str(home)}, check=True)
    assert list((home / "machines/making").iterdir()) == []
    assert not (home / "machines/states").exists()
