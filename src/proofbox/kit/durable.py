"""What is on the disk and not only in memory. All calls block."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """What was made in, renamed into or out of the directory ``path`` is so after a power failure.

    Raises ``OSError``.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def sync_file_system(path: Path) -> None:
    """All that was written to the file system of the directory ``path`` is on the disk when this returns.

    One call, and not one for each of the many files of a tree. Raises ``OSError``, also for a write that failed before.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(directory):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(directory)
