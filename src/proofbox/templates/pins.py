"""Who needs what in the store: one lock file a digest, held shared by each process that uses it.

The kernel drops a lock with its process, however that ends. What removes something takes the lock alone first, and
looks again whether it is needed only then: whoever begins to need it meanwhile waits for the lock, and looks after that
whether it is still there.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.errors import StoreFailed
from proofbox.host.home import private_directory
from proofbox.kit.lock import take_lock


class Pins:
    """What this process holds of one store. For any number of threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, int] = {}
        self._holding = threading.Lock()

    def hold(self, digest: str) -> None:
        """Holds it until ``drop``, ``close`` or the end of this process. Waits for a removal that is under way.

        Look whether it is there after this, not before. Raises ``StoreFailed``. Safe to repeat.
        """
        with self._holding:
            if digest in self._held:
                return
            try:
                self._held[digest] = self._locked(digest, fcntl.LOCK_SH)
            except OSError as error:
                raise StoreFailed(f"pin of {digest} in {self._directory}: {error}") from error

    def drop(self, digest: str) -> None:
        """Lets go of it. Safe to repeat."""
        with self._holding:
            if digest in self._held:
                os.close(self._held.pop(digest))

    def close(self) -> None:
        """Lets go of everything."""
        with self._holding:
            while self._held:
                os.close(self._held.popitem()[1])

    @contextmanager
    def alone(self, digest: str) -> Iterator[bool]:
        """Whether nobody holds it; if so, nobody can begin to inside the ``with``, and its lock file goes with it.

        Do little inside: who wants to hold it waits, and so do all others who remove something, so that none of them is
        taken for one who holds. Not inside another one.
        """
        private_directory(self._directory)
        removing = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(removing, fcntl.LOCK_EX)
            try:
                lock = self._locked(digest, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
                self._path(digest).unlink(missing_ok=True)
            finally:
                os.close(lock)
        finally:
            os.close(removing)

    def _path(self, digest: str) -> Path:
        return self._directory / digest.removeprefix("sha256:")

    def _locked(self, digest: str, how: int) -> int:
        private_directory(self._directory)
        return take_lock(self._path(digest), how)
