"""Whole directories: into a sandbox, out of it, and as tar archives. Paths inside are resolved by the guest."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final

import anyio
from anyio import to_thread

from proofbox.errors import FileFailed, InvalidInput, OperationFailed
from proofbox.kit.newtree import Misplaced
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.fileops import FileOperations, Path, pieces, text_of
from proofbox.sandbox.given import as_count, as_data
from proofbox.sandbox.localtree import LINKS, SPECIAL, Links, Packing, Sieve, Special, TooMuch, Unfit, Unpacking
from proofbox.sandbox.stream import Stream
from proofbox.wire import frames, guest
from proofbox.wire.frames import WireError

DOWNLOAD_MOST: Final = 4 << 30
"""Bytes of content in one download where the caller names no limit: the agent must not fill the host's disk."""
ENTRIES_MOST: Final = 1_000_000
"""Entries in one download where the caller names no limit."""


@dataclass(frozen=True, slots=True)
class TreeInfo:
    """What was moved: ``entries`` of all kinds, ``size`` bytes of content.

    ``left_out`` says how many were not moved; the first hundred are in ``left_out_names``, but for sockets inside,
    which the guest only counts.
    """

    entries: int
    size: int
    left_out: int = 0
    left_out_names: tuple[str, ...] = ()


class Trees:
    """Operations on whole directories. All raise ``FileFailed`` with the path of what failed and its errno,
    ``InvalidInput`` and ``SandboxLost``; what goes wrong with a directory of this machine is an ``OSError``.

    Names may be any bytes but NUL and "/"; paths at most 256 names deep. Kinds, permission bits, times, symbolic and
    hard links are kept; extended attributes are not.
    """

    def __init__(self, operations: FileOperations) -> None:
        self._ops = operations

    async def upload(
        self,
        local_dir: str | os.PathLike[str],
        path: Path,
        *,
        user: str | None = None,
        owner: str | None = None,
        parents: bool = True,
        links: Links = "inside",
        special: Special = "refuse",
    ) -> TreeInfo:
        """Copies what ``local_dir`` holds into the directory ``path``, which is made with its parents if it is missing.

        What is there already stays; a file of the same name is replaced, in one step each. All of it belongs to
        ``owner``, or to the user who writes. No link of the tree is followed: ``links`` is "inside" (kept if they lead
        nowhere out of the tree, else ``InvalidInput``), "keep" (kept as they are) or "skip"; ``special`` says the same
        of devices, FIFOs and sockets. On failure and on cancellation the entries before stay, whole ones only.
        """
        sieve = _sieve(links, special)
        what = f"upload of {os.fspath(local_dir)!r}"
        try:
            packing = Packing(pathlib.Path(local_dir), sieve)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InvalidInput(f"{what}: {error.strerror}; name a directory") from error

        async def source() -> AsyncIterator[bytes]:
            while block := await to_thread.run_sync(packing.next):
                yield block

        try:
            counts = await self._write("upload", path, source(), user, owner, parents, 0)
        except Unfit as error:
            raise InvalidInput(f"{what}: {error}") from error
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(packing.close)
        self._check(counts, sieve)
        return TreeInfo(sieve.entries, sieve.size, sieve.left_out, tuple(sieve.names))

    async def download(
        self,
        path: Path,
        local_dir: str | os.PathLike[str],
        *,
        user: str | None = None,
        links: Links = "inside",
        special: Special = "refuse",
        limit: int | None = None,
        entries: int | None = None,
    ) -> TreeInfo:
        """Copies what the directory ``path`` holds into the new directory ``local_dir``, whose parent has to be there.

        It appears under its name when it is whole, and not before: a failure or a cancellation leaves nothing (only if
        this process is killed, a directory ``.proofbox-*`` beside it). Nothing in the tree is believed: files and
        directories belong to the caller, without set-user-id and within the umask; no name and no link is resolved
        here. ``links`` and ``special`` are as in ``upload``, and what they refuse raises ``OperationFailed``. More than
        ``limit`` bytes of content (4 GiB) or ``entries`` (a million; of directories some 100,000) is EFBIG.
        """
        sieve = _sieve(links, special)
        most = DOWNLOAD_MOST if limit is None else as_count(limit, "limit")
        count = ENTRIES_MOST if entries is None else as_count(entries, "entries")
        final = pathlib.Path(os.path.abspath(local_dir))
        if os.path.lexists(final):
            raise InvalidInput(f"download to {os.fspath(local_dir)!r}: it is there already; name a new directory")
        run = self._ops.prepare(guest.READ_TREE, path, user, patient=True)
        unpacking = Unpacking(final, sieve, limit=most, entries=count)

        async def drain(channel: Channel, stream: Stream) -> None:
            async for data in pieces(channel, stream):
                await to_thread.run_sync(unpacking.feed, data)

        try:
            stream = await self._ops.do("download", path, run, drain)
            counts = self._counts(stream)
            self._check(counts, sieve)
            await to_thread.run_sync(unpacking.finish)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(unpacking.give_up)
            explained = self._explained(path, error)
            if explained is None:
                raise
            raise explained from error
        left_out = sieve.left_out + counts.left_out
        return TreeInfo(sieve.entries - sieve.left_out, sieve.size, left_out, tuple(sieve.names))

    async def read_tar(self, path: Path, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """What the directory ``path`` holds, as a tar archive, in pieces as they come, at the reader's pace.

        POSIX (ustar, pax); owners are ids as seen inside. Whole only if no error comes out in the end. What is in it is
        the agent's: unpack it as such. A reader that stops early closes it (``aclose``), which ends the operation.
        """
        run = self._ops.prepare(guest.READ_TREE, path, user, patient=True)
        stream = await self._ops.start(run)
        try:
            async for data in pieces(self._ops.life.channel, stream):
                yield data
        except BaseException:
            await self._ops.abandon(stream)
            raise
        self._counts(self._ops.settle("read_tar", path, run, stream))

    async def write_tar(
        self,
        path: Path,
        source: AsyncIterable[bytes],
        *,
        user: str | None = None,
        owner: str | None = None,
        owners: bool = False,
        parents: bool = True,
    ) -> TreeInfo:
        """Unpacks a tar archive (POSIX or GNU, not packed) into the directory ``path``; as ``upload`` otherwise.

        ``owners``: the numeric ids of the archive, instead of one owner for all. Refused, with the path of the entry:
        absolute paths and ``..`` (EINVAL), a way through a link (ELOOP), devices (EPERM), anything that is no whole tar
        archive (EBADMSG).
        """
        counts = await self._write("write_tar", path, source, user, owner, parents, guest.OWNERS if owners else 0)
        return TreeInfo(counts.entries, counts.size)

    async def _write(
        self,
        operation: str,
        path: Path,
        source: AsyncIterable[bytes],
        user: str | None,
        owner: str | None,
        parents: bool,
        flags: int,
    ) -> guest.TreeCounts:
        flags |= guest.PARENTS if parents else 0
        run = self._ops.prepare(guest.WRITE_TREE, path, user, owner=owner, flags=flags, stdin=True, patient=True)

        async def feed(channel: Channel, stream: Stream) -> None:
            async for piece in source:
                if not await channel.send(stream, frames.STDIN, as_data(piece, "data")):
                    return
            await channel.send(stream, frames.STDIN, b"", eof=True)

        return self._counts(await self._ops.do(operation, path, run, feed))

    def _counts(self, stream: Stream) -> guest.TreeCounts:
        try:
            return guest.decode_tree_counts(stream.end.result if stream.end is not None else b"")
        except WireError as error:
            raise self._ops.violation(error) from error

    def _check(self, counts: guest.TreeCounts, sieve: Sieve) -> None:
        """What the guest says it moved is what this side has seen."""
        if (counts.entries, counts.size) != (sieve.entries, sieve.size):
            told = f"{counts.entries} entries and {counts.size} bytes of a tree of {sieve.entries} and {sieve.size}"
            raise self._ops.violation(WireError(f"END tells of {told}"))

    def _explained(self, path: Path, error: BaseException) -> BaseException | None:
        """What to raise for what went wrong in a download; None: just that."""
        what = f"download of {text_of(path)!r} from sandbox {self._ops.life.spec.id}"
        if isinstance(error, WireError):
            return self._ops.violation(error)
        if isinstance(error, TooMuch):
            return FileFailed("download", text_of(path), errno.EFBIG)
        if isinstance(error, (Unfit, Misplaced)):
            return OperationFailed(f"{what}: {error}", "download")
        return None


def _sieve(links: Links, special: Special) -> Sieve:
    if links not in LINKS or special not in SPECIAL:
        raise InvalidInput(f"links {links!r} is one of {', '.join(LINKS)}, special {special!r} of {', '.join(SPECIAL)}")
    return Sieve(links, special)
