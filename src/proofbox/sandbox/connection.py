"""A two-way byte stream into a sandbox: to a server inside, or to descriptor 3 of a command."""

from __future__ import annotations

import errno
from typing import Final

import anyio

from proofbox.errors import OperationFailed
from proofbox.sandbox.channel import READ_SIZE, Channel
from proofbox.sandbox.given import as_count, as_data, as_path
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.result import refusal
from proofbox.sandbox.stream import Stream
from proofbox.wire import frames, guest

CONNECT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 2.0


class Connection:
    """Bytes in order, both ways, with back-pressure. One sender and one receiver at a time."""

    __slots__ = ("_channel", "_own", "_stream")

    def __init__(self, channel: Channel, stream: Stream, *, own: bool) -> None:
        self._channel = channel
        self._stream = stream
        self._own = own
        """The stream is this connection and nothing else; a command's stream goes on after its channel."""

    async def send(self, data: bytes | str) -> bool:
        """Sends as fast as the other side reads; False if it has gone away before it had all. Raises
        ``SandboxLost``.
        """
        return await self._channel.send(self._stream, frames.CHANNEL, as_data(data, "data"))

    async def send_eof(self) -> None:
        """Tells the other side that nothing more comes. Idempotent."""
        if self._stream.takes(frames.CHANNEL):
            await self._channel.send(self._stream, frames.CHANNEL, b"", eof=True)

    async def receive(self, most: int = READ_SIZE) -> bytes:
        """The next bytes, at most ``most``; b"" at the end. Cancelling loses nothing. Raises ``SandboxLost``."""
        stream = self._stream
        while True:
            data = self._channel.read(stream, frames.CHANNEL, most)
            if data:
                return data
            if stream.over:
                if stream.error is not None:
                    raise stream.lost()
                return b""
            if stream.incoming[frames.CHANNEL].eof:
                return b""
            await stream.change()

    async def aclose(self) -> None:
        """Ends it. Idempotent. The command behind a channel goes on, and reads the end of it."""
        if self._stream.over:
            return
        if not self._own:
            await self.send_eof()
            return
        self._channel.kill(self._stream)
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await self._stream.done.wait()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def open_connection(life: Life, to: int | str | bytes) -> Connection:
    """Connects to a server inside: a TCP port on its loopback, a Unix socket's path, or "@name" for an abstract one.

    Raises ``OperationFailed`` with step ``connect`` and the errno, ``InvalidInput``, ``SandboxLost``. Cancelled, it is
    closed.
    """
    if isinstance(to, (str, bytes)):
        wanted = guest.Connect(unix=as_path(to, "socket path"))
    else:
        wanted = guest.Connect(tcp=as_count(to, "port", 65535, 1))
    channel = life.channel
    await channel.room()
    stream = channel.connect(wanted)
    connection = Connection(channel, stream, own=True)
    try:
        with anyio.move_on_after(CONNECT_SECONDS):
            while stream.pid is None and not stream.over:
                await stream.change()
    except BaseException:
        await connection.aclose()
        raise
    what = f"connection to {to!r} in sandbox {life.spec.id}"
    if stream.error is not None:
        raise stream.lost()
    if stream.refused is not None:
        raise refusal(stream.refused, what)
    if stream.pid is None and not stream.over:
        await connection.aclose()
        raise OperationFailed(f"{what}: not accepted within {CONNECT_SECONDS:g} s", "connect", errno.ETIMEDOUT)
    return connection
