"""Which range of ids each sandbox of this host has, where each has one of its own.

Processes tell each other by locks on a file in the state directory: who holds the lock on byte N has the range N. The
kernel lets go of the locks of a process that is killed. Our launcher (guest/launch.c) takes its ranges in the same way.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proofbox.errors import CreateFailed, StoreFailed
from proofbox.host.idmap import HIGHEST, LOWEST, RANGE
from proofbox.host.owner import state_dir
from proofbox.kit.forked import OfProcess

SLOTS: Final = (HIGHEST - LOWEST) // RANGE + 1
_LOCK: Final = "@hhqqi4x"
"""``struct flock``: type, whence, start, length, process."""


def locks_file() -> Path | None:
    """The file, made if it is missing; None where the state directory takes none: then only chance keeps processes
    apart.
    """
    try:
        path = state_dir() / "ids"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except (StoreFailed, OSError):
        return None
    return path


class Ranges:
    """Those that sandboxes of this process have, but those of its launcher. Safe in any thread."""

    def __init__(self, path: Path | None) -> None:
        self._holders: dict[int, str] = {}
        self._mutex = threading.Lock()
        self._file = -1 if path is None else os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def take(self, sandbox: str) -> int:
        """The first id of a range that nobody has, for that sandbox: by the hash of its id, or the next one.

        Kernel quotas for each user (keys, pending signals) are then shared with no other sandbox. Raises
        ``CreateFailed`` if all 24,576 are taken.
        """
        start = int.from_bytes(hashlib.sha256(sandbox.encode()).digest()[:4], "little")
        with self._mutex:
            for step in range(SLOTS):
                slot = (start + step) % SLOTS
                if slot not in self._holders and self._set(slot, fcntl.F_WRLCK):
                    self._holders[slot] = sandbox
                    return LOWEST + slot * RANGE
        raise CreateFailed(f"sandbox {sandbox}: all {SLOTS} ranges of {RANGE} ids are taken on this host", "ids")

    def give(self, base: int, sandbox: str) -> None:
        """It needs its range no more. Safe to repeat, also when another one has it by then."""
        slot = (base - LOWEST) // RANGE
        with self._mutex:
            if self._holders.get(slot) == sandbox:
                del self._holders[slot]
                self._set(slot, fcntl.F_UNLCK)

    def close(self) -> None:
        """Lets go of all of them."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _set(self, slot: int, how: int) -> bool:
        """False: somebody else has it. Where nothing can be locked all are free."""
        if self._file < 0:
            return True
        with suppress(BlockingIOError, PermissionError):
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack(_LOCK, how, os.SEEK_SET, slot, 1, 0))
            return True
        return False


@dataclass(slots=True)
class _Process:
    """Opened when it is first needed: whoever only imports this has no file."""

    ranges: Ranges | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_mine: Final = OfProcess(_Process)


def take_range(owner: str, sandbox: str) -> int:
    """``Ranges.take`` of this process's, for that sandbox of that owner."""
    return _ranges().take(f"{owner}/{sandbox}")


def give_range(base: int, owner: str, sandbox: str) -> None:
    """``Ranges.give`` of this process's; nothing for 0, which is nobody's."""
    if base:
        _ranges().give(base, f"{owner}/{sandbox}")


def _ranges() -> Ranges:
    mine = _mine()
    with mine.lock:
        if mine.ranges is None:
            mine.ranges = Ranges(locks_file())
        return mine.ranges
