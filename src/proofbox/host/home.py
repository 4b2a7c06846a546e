"""Where templates are kept, and the file operations that make a half-made one impossible."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proofbox.errors import StoreFailed
from proofbox.kit.durable import sync_directory
from proofbox.kit.lock import take_lock, try_lock
from proofbox.kit.thread import give_up_if_cancelled
from proofbox.kit.tree import remove_tree

_FULL: Final = (
    "the file system, or a quota on it, is full; `proofbox gc` removes what nothing needs, PROOFBOX_HOME names another "
    "place"
)
_SAID_FULL: Final = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)
_UNFINISHED: Final = re.compile(r"\..+\.[0-9a-f]{8}")
PAUSES: Final = (0.001, 0.05)
"""Seconds between looks at a lock that somebody holds: at first, and at most."""
MACHINES: Final = "machines"
"""Below it: what virtual machines are started from. An image is named by its template's digest."""


def data_home() -> Path:
    """``$PROOFBOX_HOME``, root ``/var/lib/proofbox``, else ``proofbox`` in ``$XDG_DATA_HOME`` or ``~/.local/share``."""
    named = os.environ.get("PROOFBOX_HOME")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/proofbox")
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared) if shared else Path.home() / ".local/share") / "proofbox"


def reason(error: OSError) -> str:
    """Why the store could not be written, and what to do where it is full."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    return f"{error.strerror}: {_FULL}"


def explained(said: str) -> str:
    """What another program said that was to write into the store, and what to do where that is full."""
    return f"{said}: {_FULL}" if _SAID_FULL.search(said) else said


def private_directory(path: Path) -> Path:
    """Makes ``path`` with mode 0700 if it is missing. Raises ``StoreFailed`` if it is somebody else's.

    0700: a layer may hold set-user-id programs of an image that nobody vouches for; no user of the host may reach them.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise StoreFailed(
            f"template store {path}: {error.strerror}; set PROOFBOX_HOME to a directory you own"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise StoreFailed(
            f"template store {path}: owned by uid {found.st_uid} with mode {mode}; it must be a directory of "
            f"uid {os.geteuid()} that nobody else can write; set PROOFBOX_HOME to another one"
        )
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """``path`` has either its old content or ``data``, whatever dies when; durable when this returns.

    If the process is killed, what it was writing has a free lock, and ``sweep_unfinished`` removes it.
    """
    making, lock = _unfinished(path)
    try:
        with open(lock, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            making.rename(path)
        sync_directory(path.parent)
    finally:
        making.unlink(missing_ok=True)


def _unfinished(path: Path) -> tuple[Path, int]:
    """A new file beside it, locked."""
    while True:
        making = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        lock = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(BlockingIOError):  # it is being swept, or was, between the two calls
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return making, lock
        os.close(lock)


def sweep_unfinished(directory: Path) -> int:
    """Removes what ``write_atomically`` left there of processes that were killed; how many. Safe to repeat and in
    parallel.
    """
    swept = 0
    for path in directory.glob(".*"):
        if _UNFINISHED.fullmatch(path.name) and (lock := try_lock(path)) is not None:
            path.unlink(missing_ok=True)  # with the lock of a file that has its last name by now: then it is gone
            os.close(lock)
            swept += 1
    return swept


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file ``path``; waits for it, and no longer than whoever waits for us (``give_up_if_cancelled``).
    The kernel drops it with the process.
    """
    lock = take_lock(path, fcntl.LOCK_EX, _flock_while_wanted)
    try:
        yield
    finally:
        os.close(lock)


def _flock_while_wanted(lock: int, how: int) -> None:
    pause = PAUSES[0]
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(lock, how | fcntl.LOCK_NB)
        give_up_if_cancelled()
        time.sleep(pause)
        pause = min(2 * pause, PAUSES[1])


@contextlib.contextmanager
def workshop(making: Path) -> Iterator[Path]:
    """A locked new directory below ``making``; it is removed in the end, with all that was not renamed out of it.

    If the process is killed the lock is free, and ``sweep_workshops`` removes it.
    """
    path, lock = _locked_name(private_directory(making))
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        remove_tree(path)
        path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)


def _locked_name(making: Path) -> tuple[Path, int]:
    """A new name and its lock, held before the name is used: a directory whose lock is free has a dead maker."""
    while True:
        path = making / secrets.token_hex(8)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return path, lock
        os.close(lock)  # swept between the two calls


def sweep_workshops(making: Path) -> int:
    """Removes what makers left that are dead; how many. Safe to repeat and in parallel."""
    swept = 0
    for record in making.glob("*.lock"):
        lock = try_lock(record)
        if lock is None:
            continue
        try:
            remove_tree(record.with_suffix(""))
            record.unlink(missing_ok=True)
            swept += 1
        finally:
            os.close(lock)
    return swept
