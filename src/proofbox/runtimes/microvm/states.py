"""Saved machines, so that a sandbox does not wait for its machine to boot: made once, kept in memory and on the disk.

A state is of one machine exactly: its text names everything that it depends on. On the disk it is a directory that is
there as a whole or not at all; what was damaged since is found by checksums, removed, and made again.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from proofbox.errors import StoreFailed
from proofbox.host.home import private_directory, workshop
from proofbox.kit.durable import sync_directory
from proofbox.kit.sealed import seal
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.qemu import Qemu
from proofbox.runtimes.microvm.vmm import SaveFailed, State, Vmm, memory_file

log = logging.getLogger("proofbox.runtimes.microvm")

VERSION: Final = 1
KEPT: Final = 8
"""States on the disk, the last used ones; each takes some 100 MB."""
HELD: Final = 4
"""States in this process's memory, the last used ones; they take as much there."""
CHUNK: Final = 1 << 16
"""What is not written if there are only zeros in it."""
OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
"""What is no damage of a state: it is this process that has no room for it."""
WRITER: Final = "proofbox-keeps-state"
"""The thread's name."""


Parts = Iterator[tuple[int, bytes]]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``about``: the machine. ``memory``: its bytes, and a checksum of those that are not zero, with their places."""

    about: str
    memory: int
    checksum: int
    devices: str


def about(qemu: Qemu, machine: Machine, host: str = "") -> str:
    """All that a state of it depends on. ``host``: what else, where the processor is not emulated. Raises ``OSError``.

    Files count by their path, size and time, so a file that is replaced is another one. Of images and disk only how
    many there are: a machine is saved before it has looked at them, see guest/vminit.c.
    """
    files = (Path(qemu.path), machine.kernel, machine.initramfs)
    lines = [f"state {VERSION}", qemu.version, machine.cmdline, f"{machine.machine} {machine.accelerator} {host}"]
    lines += [f"{machine.whole_memory} {machine.processors} {len(machine.images)} {machine.disk is not None}"]
    for path in files:
        found = path.stat()
        lines.append(f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ino}")
    return "\n".join(lines)


@dataclass(slots=True)
class States:
    """Those of one process, kept in ``directory``, which is private to its user. Not for two threads at once."""

    directory: Path
    _held: dict[str, State] = field(default_factory=dict)
    _unable: dict[str, str] = field(default_factory=dict)
    _making: dict[str, anyio.Lock] = field(default_factory=dict)

    async def get(self, text: str, machine: Machine, boot: Callable[[int], Awaitable[Vmm]]) -> State | None:
        """The state of the machine that ``about`` gave ``text`` for. None if QEMU cannot save it: see ``why_not``.

        The first time ``boot`` starts that machine with the file it is given for a memory, and returns when the machine
        waits for what makes it one sandbox's; it is stopped then. What ``boot`` raises, when nothing is left of its
        machine, this raises, and the next call tries again. Cancelled, there is no state, and no process. Start a
        machine from the state before anything else is awaited: only the last used ones are held.
        """
        lock = self._making.setdefault(text, anyio.Lock())
        async with lock:  # the others of a pool that is just filled wait for the first
            if text not in self._held and text not in self._unable:
                try:
                    state = await anyio.to_thread.run_sync(self._load, text, machine)
                    self._held[text] = state or await self._make(text, machine, boot)
                    if len(self._held) > HELD:
                        self._held.pop(next(iter(self._held))).close()
                except SaveFailed as failed:
                    self._unable[text] = str(failed)
            self._making.pop(text, None)
            if text in self._held:
                self._held[text] = self._held.pop(text)  # the last used one is the last one
            return self._held.get(text)

    def why_not(self, text: str) -> str:
        """Why machines of that text are booted each time; empty if they are not, or it is not known yet."""
        return self._unable.get(text, "")

    def close(self) -> None:
        """Lets go of all of them, once no machine is started any more. Idempotent."""
        while self._held:
            self._held.popitem()[1].close()

    async def _make(self, text: str, machine: Machine, boot: Callable[[int], Awaitable[Vmm]]) -> State:
        memory = memory_file(machine)
        try:
            vm = await boot(memory)
            try:
                devices = await vm.devices()
            finally:
                with anyio.CancelScope(shield=True):
                    await vm.stop()
                vm.close()
            seal(memory)
        except BaseException:
            os.close(memory)
            raise
        # Nobody has to wait for the disk. It is not a daemon: the interpreter ends after it.
        kept = State(os.dup(memory), devices)
        threading.Thread(target=keep, args=(self.directory, text, kept), name=WRITER).start()
        return State(memory, devices)

    def _load(self, text: str, machine: Machine) -> State | None:
        """From the disk; None if it is not there. What is not as it was written is removed."""
        place = _place(self.directory, text)
        memory = -1
        try:
            record = msgspec.json.decode((place / "record").read_bytes(), type=_Record)
            devices = (place / "devices").read_bytes()
            memory = memory_file(machine)
            if (
                record.about == text
                and record.memory == machine.whole_memory == (place / "memory").stat().st_size
                and record.devices == hashlib.sha256(devices).hexdigest()
                and record.checksum == _copy(place / "memory", memory)
            ):
                seal(memory)
                os.utime(place)
                memory, kept = -1, memory
                return State(kept, devices)
        except FileNotFoundError:
            if not place.exists():
                return None
        except msgspec.DecodeError:
            pass  # not a record: removed as any other damage is
        except OSError as error:
            if error.errno in OURS:
                raise
            log.debug("a state is not to be read: %s", error)
        finally:
            if memory >= 0:
                os.close(memory)
        shutil.rmtree(place, ignore_errors=True)
        return None


def keep(directory: Path, text: str, state: State) -> None:
    """Writes a state to the disk, and lets go of it. What fails costs the next process a boot: nobody's error."""
    try:
        with workshop(directory.with_name("making")) as making:
            size = os.fstat(state.memory).st_size
            checksum = _write(making / "memory", size, _parts(state.memory))
            record = _Record(text, size, checksum, hashlib.sha256(state.devices).hexdigest())
            for name, data in (("devices", state.devices), ("record", msgspec.json.encode(record))):
                _write(making / name, len(data), iter([(0, data)]))
            sync_directory(making)
            making.rename(_place(private_directory(directory), text))
        sync_directory(directory)
        _prune(directory)
    except (OSError, StoreFailed) as error:  # no room, or another process was faster
        log.debug("a state is not kept: %s", error)
    finally:
        state.close()


def _place(directory: Path, text: str) -> Path:
    return directory / hashlib.sha256(text.encode()).hexdigest()[:32]


def _prune(directory: Path) -> None:
    """Removes what was not used for longest."""
    for place in sorted(directory.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(place, ignore_errors=True)


def _parts(file: int) -> Parts:
    """What is not zero in a file, and where: the same for each copy of it, wherever that one has holes."""
    at, end, nothing = 0, os.fstat(file).st_size, bytes(CHUNK)
    while at < end:
        try:
            at = os.lseek(file, at, os.SEEK_DATA) // CHUNK * CHUNK
        except OSError:  # no more data
            return
        data = os.pread(file, CHUNK, at)
        if data != nothing[: len(data)]:
            yield at, data
        at += CHUNK


def _write(path: Path, size: int, parts: Parts) -> int:
    """Writes a new file, holes where nothing is said, durably; returns the checksum of the parts."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(file, size)
        checksum = _put(file, parts)
        os.fsync(file)
    finally:
        os.close(file)
    return checksum


def _copy(path: Path, target: int) -> int:
    """Copies a file into an empty one; returns the checksum of what is not zero."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _put(target, _parts(file))
    finally:
        os.close(file)


def _put(target: int, parts: Parts) -> int:
    checksum = 0
    for at, data in parts:
        checksum = zlib.crc32(data, zlib.crc32(at.to_bytes(8, "little"), checksum))
        os.pwrite(target, data, at)
    return checksum
