"""The process of one virtual machine: QEMU, confined, as our child.

``proofbox-guest vm-enter`` (guest/vmenter.h) is the child itself: it joins the machine's control groups, makes an empty
root with nothing in it but QEMU and what it starts, and runs QEMU there as a user that owns nothing. It dies with this
process, and the kernel ends everything below it then. Nothing that QEMU is given can be opened by anybody else: the
guest's ports, QEMU's own monitor, and a writable disk are descriptors that it inherits. Images are mounted read-only
where it alone sees them.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio

from proofbox.errors import CreateFailed, SandboxLost
from proofbox.host.seccomp.bpf import compile_filter
from proofbox.host.seccomp.policy import machine as current_machine
from proofbox.host.seccomp.policy import policy
from proofbox.host.stage import stage
from proofbox.kit.binary import guest_path
from proofbox.kit.child import end_within, exited
from proofbox.model.limits import MIB
from proofbox.runtimes.microvm.machine import IMAGE, INITRAMFS, KERNEL, TRANSLATIONS, Inherited, Machine, arguments
from proofbox.runtimes.microvm.qemu import Qemu
from proofbox.runtimes.microvm.qmp import Monitor

OVERHEAD: Final = {"kvm": 64 * MIB, "tcg": 128 * MIB + TRANSLATIONS}
"""Bytes that QEMU needs beside the guest's memory, by accelerator: a bound for its group, not what it usually takes."""
OWN_TASKS: Final = 96
"""Threads and processes of its own, which count in its group: processors, I/O threads, our program's."""

PAGE_HEADS: Final = 256
"""One byte in so many is QEMU's own in what it saves of memory, and some more."""
AT_ONCE: Final[dict[str, Any]] = {"max-bandwidth": 1 << 40, "downtime-limit": 2_000_000}
"""As fast as it can, and in one go: nobody waits at the other end."""
DEVICES: Final = 16 * MIB
"""Bytes that the state of devices may have; 64 KiB are usual."""
SAVE_S: Final = 30.0
"""Seconds for that; some milliseconds are usual."""
_PAUSE_S: Final = 0.001

STOP_PATIENCE: Final = 5.0
"""Seconds that our own program has to end the machine before it is killed, which ends the machine too."""


@dataclass(frozen=True, slots=True)
class Confined:
    """Where QEMU runs. ``groups``: the control groups' directories. ``uid``: it is that user and group.

    With ``namespace`` (``Ids.namespace``) that is an id in there; with neither, it is alone in one, as ourselves.
    """

    groups: tuple[str, ...] = ()
    uid: int = 0
    namespace: int = -1


class SaveFailed(CreateFailed):
    """QEMU did not save its machine, or did not take one in."""


@dataclass(frozen=True, slots=True)
class State:
    """A machine that runs, as it was at an instant: all of its memory, and what its devices and processors held.

    ``memory`` is a descriptor of a file in memory that nobody can change any more. Machines that are started from it
    share it, and copy what they write.
    """

    memory: int
    devices: bytes
    halted: bool = False
    """Who starts a machine from it has to let it ``go``."""

    def close(self) -> None:
        """Lets the memory go, once no machine needs it. Not to be repeated."""
        os.close(self.memory)


@dataclass(slots=True, eq=False)
class Vmm:
    """A machine that was started. Every process of it is below ``process``."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    monitor: Monitor
    qemu: str
    """The program's path."""

    @property
    def pid(self) -> int:
        """Of our own program, which ends last."""
        return self.process.pid

    async def exited(self) -> int:
        """Waits until all of its processes are gone; a status as of wait(2). Safe to repeat, and to cancel."""
        return await exited(self.process)

    async def stop(self) -> None:
        """Ends it, without a word to the guest, and waits until all of its processes are gone. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            await end_within(self.process, STOP_PATIENCE)

    async def devices(self) -> bytes:
        """What its devices and processors hold, without its memory, which has to be shared: see ``start``.

        It stands still from then on. Raises ``SaveFailed``; stop it then.
        """
        target = await self._saved(DEVICES, shared=True)
        try:
            return os.pread(target, os.lseek(target, 0, os.SEEK_CUR), 0)
        finally:
            os.close(target)

    async def copied(self, machine: Machine) -> int:
        """All of it, memory included, in a file in memory; it stands still at the end of that and goes on.

        A descriptor of the file. Raises ``SaveFailed``; it goes on then as well. Cancelled, it is copied first.
        """
        with anyio.CancelScope(shield=True):  # half-way it would stand still, and give no more answers
            try:
                most = machine.whole_memory + machine.whole_memory // PAGE_HEADS + DEVICES
                target = await self._saved(most, shared=False)
            except SaveFailed:
                with suppress(SandboxLost):  # if QEMU does not hear us, whoever uses the machine will see that
                    await self.monitor.command("migrate_cancel")
                    await self.monitor.command("cont")
                raise
            try:
                await self.monitor.command("cont")
            except SandboxLost as error:
                os.close(target)
                raise SaveFailed(str(error), "monitor") from error
        return target

    async def _saved(self, most: int, *, shared: bool) -> int:
        """In a file of ``most`` bytes that cannot grow: a guest that has taken QEMU over could fill memory with it."""
        target = os.memfd_create("machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(target, most)
            fcntl.fcntl(target, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
            await self.monitor.command("migrate-set-capabilities", capabilities=[_ignore_shared(shared)])
            await self.monitor.command("migrate-set-parameters", **AT_ONCE)
            await self.monitor.command("getfd", passed=[target], fdname="machine")
            await self.monitor.command("migrate", uri="fd:machine")
            await self._migrated()
        except SandboxLost as error:
            os.close(target)
            raise SaveFailed(str(error), "monitor") from error
        except BaseException:
            os.close(target)
            raise
        return target

    async def _migrated(self) -> None:
        try:
            with anyio.fail_after(SAVE_S):
                while (status := await self._migration()) != "completed":
                    if status in ("failed", "cancelled"):
                        raise SaveFailed(f"QEMU did not move its machine: {status}", "monitor")
                    await anyio.sleep(_PAUSE_S)
        except TimeoutError:
            raise SaveFailed(f"QEMU did not move its machine within {SAVE_S:g} s", "monitor") from None

    async def _migration(self) -> str:
        told = await self.monitor.command("query-migrate")
        return str(told.get("status", "")) if isinstance(told, dict) else ""  # a guest may have taken it over

    async def taken_in(self) -> None:
        """Waits until it has taken in the copy that it was started with. Raises ``SandboxLost``."""
        await self._migrated()

    async def go(self) -> None:
        """Lets one that was started from a halted state run. Raises ``SandboxLost``."""
        await self._migrated()
        await self.monitor.command("cont")

    def close(self) -> None:
        """Lets the descriptors go; the machine runs on. Idempotent."""
        self.socket.close()


def start(
    qemu: Qemu,
    machine: Machine,
    confined: Confined,
    ports: Sequence[socket.socket],
    *,
    state: State | None = None,
    memory: int = -1,
    copy: int = -1,
) -> Vmm:
    """Starts a machine with these serial ports, the guest's channel first. The caller closes them after this.

    It boots; or it goes on from ``state``, which has to be one of the very same machine. ``memory``: a file made by
    ``memory_file`` that it has for its memory, so that it can be saved. With ``copy``, what another one's ``copied``
    gave, it takes that in, into ``memory``, and stands still.

    It ends when the thread that called this does. What goes wrong from here on comes as FATAL on the channel, and so do
    the console's last words when QEMU ends by itself. Raises ``CreateFailed``; nothing is left then.
    """
    if machine.accelerator == "kvm" and confined.namespace >= 0:
        # The device is its group's; with lent ids groups are dropped.
        confined = replace(confined, uid=0, namespace=-1)
    near, far = socket.socketpair()
    opened: list[int] = []
    try:
        if machine.disk is not None:
            opened.append(_open(machine.disk, os.O_RDWR))
        inherited = Inherited([port.fileno() for port in ports], far.fileno(), tuple(opened), memory)
        monitor = Monitor(near)
        if state is not None or copy >= 0:
            opened.append(_filled(state.devices) if state is not None else _again(copy))
            monitor.send_ahead(
                ("migrate-set-capabilities", {"capabilities": [_ignore_shared(state is not None)]}),
                ("migrate-incoming", {"uri": f"fd:{opened[-1]}"}),
            )
            inherited = replace(inherited, restored=True, held=state is None)
        if state is not None:
            inherited = replace(inherited, memory=state.memory)
        opened.append(_filled(_filter()))
        words = [*_enter(qemu, machine, confined, inherited), "filter", str(opened[-1])]
        words += ["--", qemu.path, *arguments(machine, inherited)]
        passed = [*inherited.ports, far.fileno(), *opened, inherited.memory, confined.namespace]
        process = _spawn(words, [each for each in passed if each >= 0])
    except BaseException:
        near.close()
        raise
    finally:
        far.close()
        for each in opened:
            os.close(each)
    near.setblocking(False)
    return Vmm(process, near, monitor, qemu.path)


def memory_file(machine: Machine) -> int:
    """A descriptor of an empty file for that machine's memory, which can be sealed once no machine has it."""
    memory = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, machine.whole_memory)
    return memory


@cache
def _filter() -> bytes:
    """The one of every sandbox. QEMU has one of its own as well, which ends more of its calls, and allows others."""
    return compile_filter(policy(), current_machine())


def _ignore_shared(shared: bool) -> dict[str, object]:
    """Whether memory that is a file of ours is left out of what is saved; the same on both sides."""
    return {"capability": "x-ignore-shared", "state": shared}


def _again(file: int) -> int:
    """The same file, to be read from its start."""
    return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)


def _filled(content: bytes) -> int:
    """A file in memory that holds that, to be read from its start."""
    file = os.memfd_create("proofbox", os.MFD_CLOEXEC)
    os.pwrite(file, content, 0)
    return file


def _open(path: Path, mode: int) -> int:
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except OSError as error:
        raise CreateFailed(f"disk {path} of a virtual machine: {error.strerror}", "vmm") from error


def _spawn(words: Sequence[str], passed: Sequence[int]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is not for it."""
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            words, env={}, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=passed, start_new_session=True
        )
    except OSError as error:
        raise CreateFailed(f"start {words[0]}: {error.strerror}", "vmm") from error


def _enter(qemu: Qemu, machine: Machine, confined: Confined, inherited: Inherited) -> list[str]:
    """Our own program, and what it is to prepare: see guest/vmenter.h."""
    words = [str(guest_path()), "vm-enter", "channel", str(inherited.ports[0]), "stage", stage()]
    for group in confined.groups:
        words += ["group", group]
    if confined.uid:
        words += ["uid", str(confined.uid)]
    if confined.namespace >= 0:
        words += ["userns", str(confined.namespace)]
    for path in qemu.shown:
        words += ["show", path]
    for number, image in enumerate(machine.images):
        words += ["at", f"{IMAGE}{number}", "show", str(image)]
    if not inherited.restored:
        for target, source in ((KERNEL, machine.kernel), (INITRAMFS, machine.initramfs)):
            words += ["at", target, "show", str(source)]
    if machine.accelerator == "kvm":
        words += ["device", "/dev/kvm"]
    return words
