"""Lock files: the kernel drops a lock with the last descriptor of its holder, so a free one has a dead owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def take_lock(path: Path, how: int, flock: Callable[[int, int], None] = fcntl.flock) -> int:
    """A descriptor that holds the lock of a file, which is made if it is missing; ``how`` as for flock(2), whose errors
    it raises, and ``flock`` instead of it. Closing the descriptor gives the lock back.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            flock(lock, how)
        except BaseException:
            os.close(lock)
            raise
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # it was removed between the two calls, and says nothing any more


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of an existing file; None if it is held, missing, or was removed meanwhile.

    Closing the descriptor gives the lock back.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if os.fstat(lock).st_nlink == 0:  # another one removed it between our open and our lock
        os.close(lock)
        return None
    return lock
