"""What came of what: digests by the digest of what they were made from, so that nothing is made twice.

    HOME/<kind>/<64 hex>         the digest of the layer or template that came of it, or a text that names such digests
    HOME/<kind>/<64 hex>.lock    held by whoever makes it

Only remembered: what it names may be collected, and is made again then.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from proofbox.host.home import locked, private_directory, write_atomically
from proofbox.kit.lock import take_lock

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Memo:
    """One kind of such records in a store. Any number of processes and threads may use the same directory at once."""

    def __init__(self, home: Path, kind: str) -> None:
        self._home = home
        self._directory = home / kind

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Nobody else makes what ``key`` (a digest) leads to inside the ``with``; waits for who does. ``OSError``."""
        private_directory(self._home)
        private_directory(self._directory)
        with locked(self._record(key).with_suffix(".lock")):
            yield

    def begin(self, key: str) -> int | None:
        """As ``alone`` for who must not wait: a descriptor to close in the end; None while somebody else makes it."""
        private_directory(self._home)
        private_directory(self._directory)
        try:
            return take_lock(self._record(key).with_suffix(".lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None

    def recall(self, key: str) -> str | None:
        """What came of it the last time. Look whether that is still there, after you have pinned it."""
        try:
            text = self._record(key).read_text()
        except FileNotFoundError:
            return None
        return text

    def remember(self, key: str, what: str) -> None:
        """From now on. Raises ``OSError``."""
        write_atomically(self._record(key), what.encode())

    def sweep(self, there: Callable[[str], bool]) -> None:
        """Forgets what names a digest that is not there any more, but nothing that somebody makes anew just now."""
        for key in {path.stem for path in self._directory.glob("[0-9a-f]*")}:
            if self._holds(key, there) or (lock := self.begin(key)) is None:
                continue
            try:
                if not self._holds(key, there):  # it may have been made between the two calls
                    self._record(key).unlink(missing_ok=True)
                    self._record(key).with_suffix(".lock").unlink(missing_ok=True)
            finally:
                os.close(lock)

    def _holds(self, key: str, there: Callable[[str], bool]) -> bool:
        text = self.recall(key)
        return text is not None and all(map(there, _DIGEST.findall(text)))

    def _record(self, key: str) -> Path:
        return self._directory / key.removeprefix("sha256:")
