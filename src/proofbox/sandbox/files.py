"""Files inside. Every path is resolved by the guest, in the sandbox, with the rights of the user; never on the host."""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from proofbox.errors import FileFailed, InvalidInput, OperationFailed, ProtocolViolation
from proofbox.kit.loop import later
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.commands import Commands
from proofbox.sandbox.given import as_bytes, as_count, as_data, as_path, as_user
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.result import refusal
from proofbox.sandbox.setting import Setting
from proofbox.sandbox.stream import Stream
from proofbox.wire import frames, guest
from proofbox.wire.frames import WireError

Path = str | bytes

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

FILE_SECONDS: Final = 300.0
"""A FIFO nobody writes to, a dead file system: then the operation fails with ETIMEDOUT."""
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


class Files:
    """File operations of one sandbox. All raise ``FileFailed`` with the errno, ``InvalidInput`` and ``SandboxLost``.

    ``user`` is whose rights count and who owns what is made, the sandbox's own user where it is not given. Relative
    paths start at the sandbox's working directory. A cancelled operation has either happened or not; ``append`` and
    streams into ``append`` may have happened in part.
    """

    def __init__(self, life: Life, setting: Setting, commands: Commands) -> None:
        self._life = life
        self._setting = setting
        self._commands = commands

    async def read(self, path: Path, *, user: str | None = None, offset: int = 0, limit: int | None = None) -> bytes:
        """The bytes from ``offset`` on, at most ``limit``. Above 1 GiB it is EFBIG unless ``limit`` says less."""
        most = READ_MOST if limit is None else as_count(limit, "limit", READ_MOST)
        ask = most + 1 if limit is None else most
        run = self._run(guest.READ, path, user, offset=as_count(offset, "offset"), limit=ask, keep=ask)
        stream = await self._do("read", path, run)
        data = stream.incoming[frames.STDOUT].buffer
        if len(data) > most:
            raise FileFailed("read", _text(path), errno.EFBIG)
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
        run = self._run(guest.READ, path, user, offset=as_count(offset, "offset"), limit=most, patient=True)

        async def drain(channel: Channel, stream: Stream) -> None:
            while True:
                over = stream.over
                data = channel.read(stream, frames.STDOUT)
                if data:
                    await sink(data)
                elif over:
                    return
                else:
                    await stream.change()

        stream = await self._do("read", path, run, drain)
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
        run = self._run(guest.WRITE, path, user, mode=mode, owner=owner, flags=flags, size=len(raw), stdin=True)

        async def feed(channel: Channel, stream: Stream) -> None:
            await channel.send(stream, frames.STDIN, raw, eof=True)

        info = self._info(path, await self._do("write", path, run, feed))
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
        run = self._run(
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

        info = self._info(path, await self._do("write", path, run, feed))
        return self._written(info, total, None if append else sent)

    async def stat(self, path: Path, *, user: str | None = None, follow: bool = True) -> FileInfo:
        """Without ``follow``, of a last symbolic link itself."""
        run = self._run(guest.STAT, path, user, flags=0 if follow else guest.NOFOLLOW)
        return self._info(path, await self._do("stat", path, run))

    async def list(
        self, path: Path, *, user: str | None = None, recursive: bool = False, limit: int | None = None
    ) -> list[FileInfo]:
        """The entries, at most ``limit``; their paths are relative to ``path``. EFBIG if they fill more than 64 MiB."""
        most = None if limit is None else as_count(limit, "limit")
        flags = guest.RECURSIVE if recursive else 0
        run = self._run(guest.LIST_DIR, path, user, flags=flags, limit=most, keep=LIST_MOST)
        stream = await self._do("list", path, run)
        if stream.end is not None and stream.end.produced[0] > LIST_MOST:
            raise FileFailed("list", _text(path), errno.EFBIG)
        try:
            return [
                _info(entry.name.decode("utf-8", "surrogateescape"), entry.stat)
                for entry in guest.decode_entries(bytes(stream.incoming[frames.STDOUT].buffer))
            ]
        except WireError as error:
            raise self._violation(error) from error

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
        run = self._run(guest.MKDIR, path, user, mode=mode, owner=owner, flags=guest.PARENTS if parents else 0)
        return self._info(path, await self._do("mkdir", path, run))

    async def remove(self, path: Path, *, user: str | None = None, recursive: bool = False) -> None:
        """A file, a link, an empty directory; with ``recursive`` a directory and all below it. Links are not
        followed.
        """
        await self._do("remove", path, self._run(guest.REMOVE, path, user, flags=guest.RECURSIVE if recursive else 0))

    async def rename(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        """Atomic; replaces a file that is there."""
        run = self._run(guest.RENAME, path, user, path2=as_path(target, "target"))
        return self._info(target, await self._do("rename", path, run))

    async def readlink(self, path: Path, *, user: str | None = None) -> str:
        """Where a symbolic link points to, as it says."""
        stream = await self._do("readlink", path, self._run(guest.READLINK, path, user, keep=65_536))
        return bytes(stream.incoming[frames.STDOUT].buffer).decode("utf-8", "surrogateescape")

    async def symlink(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        """Makes the link ``path`` that points to ``target``, whether that is there or not."""
        run = self._run(guest.SYMLINK, path, user, path2=as_path(target, "target"))
        return self._info(path, await self._do("symlink", path, run))

    async def chmod(
        self, path: Path, mode: int | None = None, *, owner: str | None = None, user: str | None = None
    ) -> FileInfo:
        """Sets the permission bits, the owner (``name``, ``uid``, ``name:group``), or both."""
        if mode is None and owner is None:
            raise InvalidInput("chmod needs a mode, an owner, or both")
        run = self._run(guest.CHANGE, path, user, mode=mode, owner=owner)
        return self._info(path, await self._do("chmod", path, run))

    def _run(
        self,
        file_op: int,
        path: Path,
        user: str | None,
        *,
        mode: int | None = None,
        owner: str | None = None,
        flags: int = 0,
        offset: int = 0,
        limit: int | None = None,
        size: int | None = None,
        path2: bytes | None = None,
        keep: int | None = None,
        stdin: bool = False,
        patient: bool = False,
    ) -> guest.Run:
        setting = self._setting
        return guest.Run(
            kind=guest.FILE,
            cwd=setting.cwd,
            user=setting.user_with(user),
            stdin=stdin,
            deadline_ms=0 if patient else int(FILE_SECONDS * 1000),
            keep=keep,
            file_op=file_op,
            path=as_path(path),
            path2=path2,
            mode=None if mode is None else as_count(mode, "mode", 0o7777),
            owner=None if owner is None else as_user(owner),
            offset=offset,
            limit=limit,
            flags=flags,
            size=size,
        )

    async def _do(
        self,
        operation: str,
        path: Path,
        run: guest.Run,
        serve: Callable[[Channel, Stream], Awaitable[None]] | None = None,
    ) -> Stream:
        """Runs one operation to its end; ``serve`` moves its data meanwhile."""
        channel = self._life.channel
        await channel.room()
        stream = channel.run(run, run.keep)
        stop = later(FILE_SECONDS + 15, lambda: self._late(operation, stream)) if run.deadline_ms else None
        try:
            if serve is not None:
                await serve(channel, stream)
            if not stream.over:
                await stream.done.wait()
        except BaseException:
            await self._commands.end(channel, stream)
            raise
        finally:
            if stop is not None:
                stop()
        if stream.error is not None:
            raise stream.lost()
        what = f"{operation} {_text(path)!r} in sandbox {self._life.spec.id}"
        if stream.refused is not None:
            raise refusal(stream.refused, what, run)
        end = stream.end
        if end is None or end.how == guest.SUPERVISOR_LOST:
            raise OperationFailed(f"{what}: something in the sandbox killed it", operation)
        if end.how == guest.DEADLINE:
            raise FileFailed(operation, _text(path), errno.ETIMEDOUT)
        if end.errno:
            raise FileFailed(operation, _text(path), end.errno)
        if end.how != guest.EXITED or end.code:
            raise OperationFailed(f"{what}: it was killed (it ended with {end.code}), perhaps for memory", operation)
        return stream

    def _late(self, operation: str, stream: Stream) -> None:
        if not stream.over:
            self._life.lose(self._life.unanswered(f"{operation} (operation {stream.id})", FILE_SECONDS))

    def _info(self, path: Path, stream: Stream) -> FileInfo:
        try:
            return _info(_text(path), guest.decode_stat(stream.end.result if stream.end is not None else b""))
        except WireError as error:
            raise self._violation(error) from error

    def _written(self, info: FileInfo, total: hashlib._Hash, size: int | None) -> FileInfo:
        """What a write answers. A file of another size than what was sent would be a lie or a loss: never success."""
        if size is not None and info.kind == "file" and info.size != size:
            raise OperationFailed(f"write {info.path!r}: {info.size} bytes are there, {size} were sent", "write")
        return replace(info, sha256=total.hexdigest())

    def _violation(self, error: WireError) -> ProtocolViolation:
        violation = ProtocolViolation(f"sandbox {self._life.spec.id}: {error}; it was ended")
        self._life.lose(violation)
        return violation


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


def _text(path: Path) -> str:
    return as_bytes(path, "path").decode("utf-8", "surrogateescape")
