"""Files inside. Every path is resolved by the guest, in the sandbox, with the rights of the user; never on the host."""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from proofbox.errors import FileFailed, InvalidInput, OperationFailed
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.fileops import Path, pieces, text_of
from proofbox.sandbox.given import as_count, as_data, as_path
from proofbox.sandbox.stream import Stream
from proofbox.sandbox.trees import Trees
from proofbox.wire import frames, guest
from proofbox.wire.frames import WireError

Kind = Literal["file", "directory", "link", "fifo", "socket", "character device", "block device", "other"]
_KINDS: Final[dict[int, Kind]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}

READ_MOST: Final = 1 << 30
"""Bytes that ``read`` returns at most where the caller names no limit: a device has no end, and the host only so
much memory.
"""
LIST_MOST: Final = 64 << 20
"""Bytes of entries in one listing."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """``mode`` is permission bits, ``mtime_ns`` since the epoch. A name that is not UTF-8 has surrogate escapes in
    it.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    links: int
    size: int
    inode: int
    mtime_ns: int
    sha256: str = ""
    """Of what a write brought, in hexadecimal digits; empty for everything else. The guest has confirmed its size."""


class Files(Trees):
    """File operations of one sandbox. All raise ``FileFailed`` with the errno, ``InvalidInput`` and ``SandboxLost``.

    Those on whole trees (``upload``, ``download``, ``read_tar``, ``write_tar``) are described in ``Trees``.

    ``user`` is whose rights count and who owns what is made, the sandbox's own user where it is not given. Relative
    paths start at the sandbox's working directory. A cancelled operation has either happened or not; ``append`` and
    streams into ``append`` may have happened in part.
    """

    async def read(self, path: Path, *, user: str | None = None, offset: int = 0, limit: int | None = None) -> bytes:
        """The bytes from ``offset`` on, at most ``limit``. Above 1 GiB it is EFBIG unless ``limit`` says less."""
        most = READ_MOST if limit is None else as_count(limit, "limit", READ_MOST)
        ask = most + 1 if limit is None else most
        run = self._ops.prepare(guest.READ, path, user, offset=as_count(offset, "offset"), limit=ask, keep=ask)
        stream = await self._ops.do("read", path, run)
        data = stream.incoming[frames.STDOUT].buffer
        if len(data) > most:
            raise FileFailed("read", text_of(path), errno.EFBIG)
        return bytes(data)

    async def read_into(
        self,
        path: Path,
        sink: Callable[[bytes], Awaitable[object]],
        *,
        user: str | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> int:
        """Calls ``sink`` with the bytes as they come, at its pace; how many there were. On an error a part has gone
        into it.
        """
        most = None if limit is None else as_count(limit, "limit")
        run = self._ops.prepare(guest.READ, path, user, offset=as_count(offset, "offset"), limit=most, patient=True)

        async def drain(channel: Channel, stream: Stream) -> None:
            async for data in pieces(channel, stream):
                await sink(data)

        stream = await self._ops.do("read", path, run, drain)
        return stream.incoming[frames.STDOUT].total

    async def write(
        self,
        path: Path,
        data: bytes | str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        """The file has either its old content or all of ``data``, also when this fails; what is there keeps owner
        and mode.
        """
        raw = as_data(data, "data")
        flags = (guest.PARENTS if parents else 0) | (guest.APPEND if append else 0)
        run = self._ops.prepare(guest.WRITE, path, user, mode=mode, owner=owner, flags=flags, size=len(raw), stdin=True)

        async def feed(channel: Channel, stream: Stream) -> None:
            await channel.send(stream, frames.STDIN, raw, eof=True)

        info = self._info(path, await self._ops.do("write", path, run, feed))
        return self._written(info, hashlib.sha256(raw), None if append else len(raw))

    async def write_from(
        self,
        path: Path,
        source: AsyncIterable[bytes],
        *,
        size: int | None = None,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        """As ``write``, from a stream. With ``size`` given, another number of bytes is EIO and the file is as it was.

        If ``source`` raises, the operation is cancelled and the file is as it was.
        """
        flags = (guest.PARENTS if parents else 0) | (guest.APPEND if append else 0)
        exact = None if size is None else as_count(size, "size")
        run = self._ops.prepare(
            guest.WRITE, path, user, mode=mode, owner=owner, flags=flags, size=exact, stdin=True, patient=True
        )

        total = hashlib.sha256()
        sent = 0

        async def feed(channel: Channel, stream: Stream) -> None:
            nonlocal sent
            async for piece in source:
                raw = as_data(piece, "data")
                total.update(raw)
                sent += len(raw)
                if not await channel.send(stream, frames.STDIN, raw):
                    return
            await channel.send(stream, frames.STDIN, b"", eof=True)

        info = self._info(path, await self._ops.do("write", path, run, feed))
        return self._written(info, total, None if append else sent)

    async def stat(self, path: Path, *, user: str | None = None, follow: bool = True) -> FileInfo:
        """Without ``follow``, of a last symbolic link itself."""
        run = self._ops.prepare(guest.STAT, path, user, flags=0 if follow else guest.NOFOLLOW)
        return self._info(path, await self._ops.do("stat", path, run))

    async def list(
        self, path: Path, *, user: str | None = None, recursive: bool = False, limit: int | None = None
    ) -> list[FileInfo]:
        """The entries, at most ``limit``; their paths are relative to ``path``. EFBIG if they fill more than 64 MiB."""
        most = None if limit is None else as_count(limit, "limit")
        flags = guest.RECURSIVE if recursive else 0
        run = self._ops.prepare(guest.LIST_DIR, path, user, flags=flags, limit=most, keep=LIST_MOST)
        stream = await self._ops.do("list", path, run)
        if stream.end is not None and stream.end.produced[0] > LIST_MOST:
            raise FileFailed("list", text_of(path), errno.EFBIG)
        try:
            return [
                _info(entry.name.decode("utf-8", "surrogateescape"), entry.stat)
                for entry in guest.decode_entries(bytes(stream.incoming[frames.STDOUT].buffer))
            ]
        except WireError as error:
            raise self._ops.violation(error) from error

    async def mkdir(
        self,
        path: Path,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = False,
    ) -> FileInfo:
        """With ``parents`` those too, and a directory that is there is success."""
        run = self._ops.prepare(guest.MKDIR, path, user, mode=mode, owner=owner, flags=guest.PARENTS if parents else 0)
        return self._info(path, await self._ops.do("mkdir", path, run))

    async def remove(self, path: Path, *, user: str | None = None, recursive: bool = False) -> None:
        """A file, a link, an empty directory; with ``recursive`` a directory and all below it. Links are not
        followed.
        """
        await self._ops.do(
            "remove", path, self._ops.prepare(guest.REMOVE, path, user, flags=guest.RECURSIVE if recursive else 0)
        )

    async def rename(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        """Atomic; replaces a file that is there."""
        run = self._ops.prepare(guest.RENAME, path, user, path2=as_path(target, "target"))
        return self._info(target, await self._ops.do("rename", path, run))

    async def readlink(self, path: Path, *, user: str | None = None) -> str:
        """Where a symbolic link points to, as it says."""
        stream = await self._ops.do("readlink", path, self._ops.prepare(guest.READLINK, path, user, keep=65_536))
        return bytes(stream.incoming[frames.STDOUT].buffer).decode("utf-8", "surrogateescape")

    async def symlink(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        """Makes the link ``path`` that points to ``target``, whether that is there or not."""
        run = self._ops.prepare(guest.SYMLINK, path, user, path2=as_path(target, "target"))
        return self._info(path, await self._ops.do("symlink", path, run))

    async def chmod(
        self, path: Path, mode: int | None = None, *, owner: str | None = None, user: str | None = None
    ) -> FileInfo:
        """Sets the permission bits, the owner (``name``, ``uid``, ``name:group``), or both."""
        if mode is None and owner is None:
            raise InvalidInput("chmod needs a mode, an owner, or both")
        run = self._ops.prepare(guest.CHANGE, path, user, mode=mode, owner=owner)
        return self._info(path, await self._ops.do("chmod", path, run))

    def _info(self, path: Path, stream: Stream) -> FileInfo:
        try:
            return _info(text_of(path), guest.decode_stat(stream.end.result if stream.end is not None else b""))
        except WireError as error:
            raise self._ops.violation(error) from error

    def _written(self, info: FileInfo, total: hashlib._Hash, size: int | None) -> FileInfo:
        """What a write answers. A file of another size than what was sent would be a lie or a loss: never success."""
        if size is not None and info.kind == "file" and info.size != size:
            raise OperationFailed(f"write {info.path!r}: {info.size} bytes are there, {size} were sent", "write")
        return replace(info, sha256=total.hexdigest())


def _info(path: str, found: guest.StatRecord) -> FileInfo:
    return FileInfo(
        path=path,
        kind=_KINDS.get(stat.S_IFMT(found.mode), "other"),
        mode=stat.S_IMODE(found.mode),
        uid=found.uid,
        gid=found.gid,
        links=found.links,
        size=found.size,
        inode=found.inode,
        mtime_ns=found.mtime_ns,
    )
