"""Blobs of images while they are pulled: each is fetched once, however many pulls want it, and kept while one does.

    HOME/fetched/<64 hex>        lock file: held shared by every pull that wants the blob, see ``pins.py``
    HOME/fetched/<64 hex>.lock   held by the pull that fetches it
    HOME/fetched/<64 hex>.blob   the blob, when it is whole

A pull waits only while it fetches nothing: in whatever orders two of them want their blobs, one goes on.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from os import close
from pathlib import Path
from types import TracebackType
from typing import Final

from proofbox.errors import StoreFailed
from proofbox.kit.lock import take_lock
from proofbox.kit.thread import give_up_if_cancelled
from proofbox.templates.pins import Pins

DIRECTORY: Final = "fetched"
PAUSE: Final = 0.05
"""Seconds between looks at what other pulls fetch."""

Fetch = Callable[[Sequence[str]], Path]
"""Fetches the blobs with these digests into a new directory, each by its 64 hex digits."""


class Fetched:
    """The blobs that one pull wants, by their digests. They are held inside the ``with``, and the last one who holds a
    blob removes it. Not for two threads: each pull has its own, also of one process.
    """

    def __init__(self, home: Path, wanted: Collection[str]) -> None:
        self._directory = home / DIRECTORY
        self._pins = Pins(self._directory)
        self._wanted = frozenset(wanted)

    def __enter__(self) -> Fetched:
        try:
            for digest in self._wanted:
                self._pins.hold(digest)
        except StoreFailed:
            self._pins.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pins.close()
        for digest in self._wanted:
            _let_go(self._directory, self._pins, digest)

    def path(self, digest: str) -> Path:
        """Where it is, or would be."""
        return self._directory / f"{digest.removeprefix('sha256:')}.blob"

    def bring(self, digests: Collection[str], fetch: Fetch) -> int:
        """Until these, which are among those wanted, are there; how many of them ``fetch`` was asked for.

        What another pull fetches is waited for, and fetched here if that one fails or is killed. Raises what ``fetch``
        raises, and ``OSError``; whole blobs stay until nobody wants them. Safe to repeat.
        """
        count = 0
        while absent := [digest for digest in digests if not self.path(digest).exists()]:
            with ExitStack() as locks:
                ours = [digest for digest in absent if self._begun(digest, locks)]
                ours = [digest for digest in ours if not self.path(digest).exists()]  # by who has just let it go
                if ours:
                    made = fetch(ours)
                    for digest in ours:
                        (made / digest.removeprefix("sha256:")).rename(self.path(digest))
                    count += len(ours)
                    continue
            give_up_if_cancelled()
            time.sleep(PAUSE)
        return count

    def _begun(self, digest: str, locks: ExitStack) -> bool:
        try:
            lock = take_lock(self.path(digest).with_suffix(".lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        locks.callback(close, lock)
        return True


def sweep(home: Path) -> int:
    """Removes what pulls left that were killed; of how many blobs. Safe to repeat, and beside pulls."""
    directory = home / DIRECTORY
    pins = Pins(directory)
    return sum(_let_go(directory, pins, digest) for digest in {path.stem for path in directory.glob("[0-9a-f]*")})


def _let_go(directory: Path, pins: Pins, digest: str) -> bool:
    with pins.alone(digest) as alone:
        if alone:
            for suffix in (".blob", ".lock"):
                (directory / digest.removeprefix("sha256:")).with_suffix(suffix).unlink(missing_ok=True)
        return alone
