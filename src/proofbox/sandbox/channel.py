"""The connection to a guest: frames in and out, many streams, credit both ways. Knows nothing of what streams mean.

Reading is a callback of the event loop, not a task: a channel serves whoever uses the sandbox, in whatever task. One
frame of the guest that breaks the protocol ends the channel; nothing that it says can make the host hold more than the
windows and ``keep`` of its open streams.
"""

from __future__ import annotations

import copy
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

from proofbox.errors import InvalidInput, ProtocolViolation, SandboxLost
from proofbox.kit.loop import Stop, watch_readable, watch_writable
from proofbox.sandbox.stream import Incoming, Question, Stream
from proofbox.wire import frames, guest
from proofbox.wire.frames import MAX_PAYLOAD, WireError, encode_frame, encode_message

READ_SIZE: Final = 65_536
READ_SMALL: Final = 4_096
BACKLOG: Final = 1 << 20
"""Bytes that may wait for the guest to read before senders wait too."""
BACKLOG_MOST: Final = 64 << 20
"""Bytes after which a guest that does not read is given up: credits and kills do not wait for room."""

_open: Final[weakref.WeakSet[Channel]] = weakref.WeakSet()


def _forked() -> None:
    # A forked child that held these descriptors would keep its dead parent's sandboxes alive.
    for channel in _open:
        channel.drop()


os.register_at_fork(after_in_child=_forked)


class Channel:
    """One guest. ``sock`` is non-blocking and belongs to the channel from now on.

    ``like``: the guest is a copy of that channel's, made while nothing was under way there, and knows us already.
    ``on_lost`` is called once, from the event loop, when the channel can no longer be used: with the violation, or with
    None when the stream has ended. It must see to it that ``fail`` is called.
    """

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_closes",
        "_decoder",
        "_hello",
        "_name",
        "_next",
        "_on_lost",
        "_pinged",
        "_questions",
        "_queued",
        "_read_size",
        "_room",
        "_sock",
        "_stop_reading",
        "_stop_writing",
        "_streams",
        "error",
        "fatal",
    )

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        on_lost: Callable[[ProtocolViolation | None], None],
        like: Channel | None = None,
    ) -> None:
        self._sock = sock
        self._name = name
        self._on_lost: Callable[[ProtocolViolation | None], None] | None = on_lost
        """None once it can be called no more: whose it is holds this channel, and both go without the help of gc."""
        self._decoder = frames.FrameDecoder("guest", greeted=like is not None)
        self._streams: dict[int, Stream] = {}
        self._next: int = 1 if like is None else like._next
        self._hello: guest.GuestHello | anyio.Event = anyio.Event() if like is None else like._hello
        self._backlog: deque[memoryview] = deque()
        self._queued = 0
        self._closes = b""
        self._questions: deque[Question] = deque()
        self._pinged: int = 0 if like is None else like._pinged
        self._room: anyio.Event | None = None
        self._read_size = READ_SIZE
        self.error: SandboxLost | None = None
        self.fatal = ""
        """The guest's last words, if it had some."""
        self._stop_writing: Stop | None = None
        self._stop_reading: Stop | None = watch_readable(sock.fileno(), self._readable)
        _open.add(self)

    @property
    def busy(self) -> bool:
        """Some operation has not ended."""
        return bool(self._streams)

    @property
    def at_rest(self) -> bool:
        """Nothing is under way in either direction, and nothing waits to be sent but what can be sent at any time."""
        return self._decoder.idle and not (self._streams or self._questions or self._backlog)

    @property
    def asked(self) -> tuple[int, int]:
        """How much was asked so far: whether it is the same later says whether anything was in between."""
        return self._next, self._pinged

    @property
    def operations(self) -> int:
        """How many there were so far, those that go on included."""
        return self._next - 1

    async def hello(self, asked: guest.HostHello) -> guest.GuestHello:
        """The handshake. Raises ``SandboxLost`` if the channel breaks; the deadline is the caller's."""
        payload = guest.HOST_HELLO_LAYOUT.encode(asked)
        self._write(encode_frame(frames.HELLO, 0, payload))
        if isinstance(self._hello, anyio.Event):
            await self._hello.wait()
        if isinstance(self._hello, anyio.Event):
            raise (
                copy.copy(self.error)
                if self.error
                else SandboxLost(f"sandbox {self._name}: no answer from its guest", "channel")
            )
        return self._hello

    @property
    def machine(self) -> str:
        """What the guest calls the machine and kernel that it sees; empty before its first answer."""
        return "" if isinstance(self._hello, anyio.Event) else self._hello.machine[:200].decode("utf-8", "replace")

    def ask(self, *, look: bool = False) -> Question:
        """One round trip to the guest, which is no operation; with ``look`` the answer is the sandbox's cheap
        fingerprint as it is now, in lines. Nothing is awaited here. Raises ``SandboxLost``.
        """
        if self.error is not None:
            raise copy.copy(self.error)
        self._pinged += 1
        question = Question(frames.LOOK) if look else Question(frames.PING, self._pinged.to_bytes(8, "big"))
        self._questions.append(question)
        self._write(encode_frame(question.kind, 0, question.asked))
        return question

    def run(self, run: guest.Run, keep: int | None) -> Stream:
        """Sends ``RUN``. Nothing is awaited: after this call the operation exists. Raises ``SandboxLost``,
        ``WireError``.
        """
        incoming: dict[int, Incoming] = {}
        incoming[frames.STDOUT] = Incoming(keep)
        if run.kind != guest.FILE and not run.merge and run.pty is None:
            incoming[frames.STDERR] = Incoming(keep)
        elif run.file_op in guest.TREES:
            incoming[frames.STDERR] = Incoming(guest.PATH_MOST)
        outgoing: tuple[int, ...] = (frames.STDIN,) if run.stdin or run.pty is not None else ()
        if run.channel:
            incoming[frames.CHANNEL] = Incoming(None)
            outgoing += (frames.CHANNEL,)
        stream = self._open(frames.RUN, guest.RUN_LAYOUT.encode(run), incoming, outgoing)
        stream.deadline = run.deadline_ms / 1000
        stream.output_limit = run.output_limit
        return stream

    def connect(self, connect: guest.Connect) -> Stream:
        """Sends ``CONNECT``. As ``run``."""
        payload = guest.CONNECT_LAYOUT.encode(connect)
        return self._open(frames.CONNECT, payload, {frames.CHANNEL: Incoming(None)}, (frames.CHANNEL,))

    def kill_all(self) -> Stream:
        """Sends ``KILL_ALL``; its ``reply`` follows, after the END of all that runs. As ``run``."""
        for stream in self._streams.values():
            stream.killed = True
        return self._open(frames.KILL_ALL, b"", {}, ())

    def tell(self, stream: Stream, kind: int, payload: bytes = b"", pipe: int = 0) -> None:
        """Sends a control frame about a stream that has not ended; nothing if it has. Raises ``SandboxLost``."""
        if not stream.over:
            self._write(encode_frame(kind, stream.id, payload, pipe=pipe))

    def kill(self, stream: Stream) -> None:
        """Asks for the end of the whole tree; ``END`` follows. Idempotent."""
        if not stream.over and not stream.killed:
            stream.killed = True
            self._write(encode_frame(frames.KILL, stream.id))

    async def send(self, stream: Stream, pipe: int, data: bytes | memoryview, eof: bool = False) -> bool:
        """Sends bytes down a pipe as fast as its reader takes them; False if the stream ended before it had taken all.

        Cancelled half-way, a part was sent. Raises ``SandboxLost``.
        """
        view = memoryview(data)
        at = 0
        while True:
            if stream.over:
                return self._ended(stream)
            credit = stream.outgoing.get(pipe, 0)
            if pipe not in stream.outgoing or pipe in stream.closed:
                raise InvalidInput(
                    f"pipe {pipe} of operation {stream.id} was closed, or was not asked for at its start"
                )
            size = min(len(view) - at, credit, MAX_PAYLOAD)
            if size or at == len(view):
                last = at + size == len(view)
                if size or eof:
                    flags = frames.EOF if eof and last else 0
                    stream.outgoing[pipe] = credit - size
                    self._write(
                        encode_frame(frames.DATA, stream.id, bytes(view[at : at + size]), pipe=pipe, flags=flags)
                    )
                at += size
                if last:
                    if eof:
                        stream.closed.add(pipe)
                    return True
                await self.room()
            else:
                await stream.change()

    def read(self, stream: Stream, pipe: int, most: int = READ_SIZE) -> bytes:
        """What came on a flowing pipe, b"" if nothing is there now. Gives the guest credit for it."""
        data, credit = stream.take(pipe, most)
        if credit and not stream.over:
            self._write(encode_frame(frames.CREDIT, stream.id, guest.encode_credit(credit), pipe=pipe))
        return data

    async def room(self) -> None:
        """Waits until the guest has read most of what waits for it. Raises ``SandboxLost``."""
        while self._queued > BACKLOG and self.error is None:
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()
        if self.error is not None:
            raise copy.copy(self.error)

    def fail(self, error: SandboxLost) -> None:
        """Ends the channel: all who wait get ``error``, and all who come later. The first error stays. Idempotent."""
        if self.error is None:
            self.error = error
        self._shut()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(self.error)
        if isinstance(self._hello, anyio.Event):
            self._hello.set()
        for question in self._questions:
            question.fail(self.error)
        if self._room is not None:
            self._room.set()

    def drop(self) -> None:
        """Closes this process's descriptor and nothing else: for a forked child, whose event loop is not its own."""
        try:
            os.close(self._sock.detach())
        except OSError:
            pass

    def _open(self, kind: int, payload: bytes, incoming: dict[int, Incoming], outgoing: tuple[int, ...]) -> Stream:
        if self.error is not None:
            raise copy.copy(self.error)
        ident = self._next
        message = encode_message(kind, ident, payload)
        self._next += 1
        stream = self._streams[ident] = Stream(ident, incoming, outgoing)
        self._write(message)
        return stream

    def _ended(self, stream: Stream) -> bool:
        if stream.error is not None:
            raise stream.lost()
        return False

    def _readable(self) -> None:
        try:
            data = self._sock.recv(self._read_size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(None)
            return
        try:
            found = self._decoder.feed(data)
            for frame in found:
                self._dispatch(frame)
        except WireError as error:
            self._lost(ProtocolViolation(f"sandbox {self._name}: its guest broke the protocol: {error}; it was ended"))
            return
        # The threat is a guest that sends thousands of tiny frames to keep the event loop busy: it is read in small
        # bites.
        self._read_size = READ_SMALL if len(found) > 128 and len(found) * 64 > len(data) else READ_SIZE

    def _dispatch(self, frame: frames.Frame) -> None:
        if frame.stream:
            stream = self._streams.get(frame.stream)
            if stream is None:
                raise WireError(f"frame of type {frame.type:#04x} for stream {frame.stream}, which is not open")
            credit = stream.on_frame(frame)
            if credit:
                self._write(encode_frame(frames.CREDIT, stream.id, guest.encode_credit(credit), pipe=frame.pipe))
            elif stream.over:
                del self._streams[frame.stream]
                # Nobody waits for a CLOSE: it goes with the next frame that does matter.
                self._closes += encode_frame(frames.CLOSE, frame.stream)
                if len(self._closes) > 2048:
                    self._write(b"")
        elif frame.type == frames.GUEST_HELLO:
            hello = guest.GUEST_HELLO_LAYOUT.decode(frame.payload)
            if hello.version != guest.VERSION or not isinstance(self._hello, anyio.Event):
                raise WireError(f"protocol version {hello.version}, or a second HELLO; we speak {guest.VERSION}")
            waiting, self._hello = self._hello, hello
            waiting.set()
        elif frame.type in (frames.PONG, frames.LOOKED):
            if not self._questions or not self._questions[0].takes(frame):
                raise WireError(f"an answer of type {frame.type:#04x} that nobody asked for")
            self._questions.popleft()
        elif frame.type == frames.FATAL:
            self.fatal = guest.fatal_words(frame.payload)
        else:
            raise WireError(f"frame of type {frame.type:#04x} that nobody asked for")

    def _write(self, data: bytes) -> None:
        """Sends, or queues what the socket does not take now. In order, whole frames."""
        if self.error is not None:
            raise copy.copy(self.error)
        if self._stop_reading is None:  # lost, and ``fail`` is about to say why
            return
        if self._closes:
            data, self._closes = self._closes + data, b""
        if self._backlog:
            self._queue(memoryview(data))
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The reading side finds out why, after it has read what the guest said last.
            return
        if sent < len(data):
            self._queue(memoryview(data)[sent:])

    def _queue(self, data: memoryview) -> None:
        self._backlog.append(data)
        self._queued += len(data)
        if self._queued > BACKLOG_MOST:
            self._lost(
                ProtocolViolation(f"sandbox {self._name}: its guest does not read what it is sent; it was ended")
            )
        elif self._stop_writing is None:
            self._stop_writing = watch_writable(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            while self._backlog:
                first = self._backlog[0]
                sent = self._sock.send(first)
                self._queued -= sent
                if sent < len(first):
                    self._backlog[0] = first[sent:]
                    break
                self._backlog.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._backlog.clear()
            self._queued = 0
        if not self._backlog and self._stop_writing is not None:
            self._stop_writing()
            self._stop_writing = None
        if self._room is not None and self._queued <= BACKLOG:
            self._room.set()
            self._room = None

    def _lost(self, violation: ProtocolViolation | None) -> None:
        on_lost = self._on_lost
        if on_lost is not None:
            self._shut()
            on_lost(violation)

    def _shut(self) -> None:
        if self._stop_reading is not None:
            self._stop_reading()
            self._stop_reading = self._on_lost = None
            if self._stop_writing is not None:
                self._stop_writing()
                self._stop_writing = None
            self._backlog.clear()
            self._sock.close()
            _open.discard(self)
