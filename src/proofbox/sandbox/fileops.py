"""One file operation of the guest, from the request to its end. What it is about is for ``Files`` and ``Trees``."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from proofbox.errors import FileFailed, OperationFailed, ProtocolViolation
from proofbox.kit.loop import later
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.commands import Commands
from proofbox.sandbox.given import as_bytes, as_count, as_path, as_user
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.result import refusal
from proofbox.sandbox.setting import Setting
from proofbox.sandbox.stream import Stream
from proofbox.wire import frames, guest
from proofbox.wire.frames import WireError

Path = str | bytes

FILE_SECONDS: Final = 300.0
"""A FIFO nobody writes to, a dead file system: then the operation fails with ETIMEDOUT."""


class FileOperations:
    """Those of one sandbox."""

    def __init__(self, life: Life, setting: Setting, commands: Commands) -> None:
        self.life = life
        self._setting = setting
        self._commands = commands

    def prepare(
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
        """The message for these arguments. ``patient``: it has no deadline. Raises ``InvalidInput``, ``Refused``."""
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

    async def start(self, run: guest.Run) -> Stream:
        """Sends it. From here on it has to be served, and settled or abandoned. Raises ``SandboxLost``."""
        channel = self.life.channel
        await channel.room()
        return channel.run(run, run.keep)

    async def abandon(self, stream: Stream) -> None:
        """Kills an operation whose caller was cancelled, or failed, and waits until it is gone."""
        channel = self.life.channel
        if not stream.over:  # what it still sends must not keep it from its end
            stream.incoming[frames.STDOUT].unread = True
            channel.read(stream, frames.STDOUT, frames.MAX_CREDIT)
        await self._commands.end(channel, stream)

    async def do(
        self,
        operation: str,
        path: Path,
        run: guest.Run,
        serve: Callable[[Channel, Stream], Awaitable[None]] | None = None,
    ) -> Stream:
        """Runs one operation to its end; ``serve`` moves its data meanwhile. What it raises ends the operation."""
        stream = await self.start(run)
        stop = later(FILE_SECONDS + 15, lambda: self._late(operation, stream)) if run.deadline_ms else None
        try:
            if serve is not None:
                await serve(self.life.channel, stream)
            if not stream.over:
                await stream.done.wait()
        except BaseException:
            await self.abandon(stream)
            raise
        finally:
            if stop is not None:
                stop()
        return self.settle(operation, path, run, stream)

    def settle(self, operation: str, path: Path, run: guest.Run, stream: Stream) -> Stream:
        """The same stream, if it ended well. Raises ``SandboxLost``, ``OperationFailed`` and ``FileFailed``."""
        if stream.error is not None:
            raise stream.lost()
        what = f"{operation} {text_of(path)!r} in sandbox {self.life.spec.id}"
        if stream.refused is not None:
            raise refusal(stream.refused, what, run)
        end = stream.end
        if end is None or end.how == guest.SUPERVISOR_LOST:
            raise OperationFailed(f"{what}: something in the sandbox killed it", operation)
        if end.how == guest.DEADLINE:
            raise FileFailed(operation, text_of(path), errno.ETIMEDOUT)
        if end.errno:
            raise FileFailed(operation, _failed_path(path, stream), end.errno)
        if end.how != guest.EXITED or end.code:
            raise OperationFailed(f"{what}: it was killed (it ended with {end.code}), perhaps for memory", operation)
        return stream

    def _late(self, operation: str, stream: Stream) -> None:
        if not stream.over:
            self.life.lose(self.life.unanswered(f"{operation} (operation {stream.id})", FILE_SECONDS))

    def violation(self, error: WireError) -> ProtocolViolation:
        """The error to raise for an answer that no guest gives; the sandbox is ended."""
        violation = ProtocolViolation(f"sandbox {self.life.spec.id}: {error}; it was ended")
        self.life.lose(violation)
        return violation


async def pieces(channel: Channel, stream: Stream) -> AsyncIterator[bytes]:
    """What comes on pipe 1 of an operation without ``keep``, until it has ended; at the pace of who takes it."""
    while True:
        over = stream.over
        data = channel.read(stream, frames.STDOUT)
        if data:
            yield data
        elif over:
            return
        else:
            await stream.change()


def text_of(path: Path) -> str:
    """As ``os.fsdecode`` would on a UTF-8 host."""
    return as_bytes(path, "path").decode("utf-8", "surrogateescape")


def _failed_path(path: Path, stream: Stream) -> str:
    """For a tree, where in it: the guest's word, in text only."""
    told = stream.incoming.get(frames.STDERR)
    where = b"" if told is None else bytes(told.buffer)
    return text_of(path) + (f"/{where.decode('utf-8', 'surrogateescape')}" if where else "")
