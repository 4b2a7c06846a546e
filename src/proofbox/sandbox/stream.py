"""One operation of the guest as the host sees it: what it may still send, what it has sent, how it ended.

The guest may lie. Whatever contradicts the protocol, or itself, raises ``WireError`` before a byte of it is kept; what
a stream can make the host hold is bounded by its windows and by ``keep``.
"""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Final

import anyio

from proofbox.errors import SandboxLost
from proofbox.wire import frames, guest
from proofbox.wire.frames import FIRST_CREDIT, MAX_CREDIT, WireError

WINDOW: Final = FIRST_CREDIT
CLOCK_SLACK: Final = 0.05
"""Seconds by which a guest's timer may fire before ours says so."""


class Incoming:
    """The bytes of one pipe towards the host.

    With ``keep`` a number they are kept from the first on, and credit is given as they come; the guest sends no more
    than ``keep``. With ``keep`` None they flow: credit is given as a reader takes them, and at most a window is held.
    ``unread``: there is no reader any more, and what comes goes nowhere.
    """

    __slots__ = ("buffer", "credit", "eof", "keep", "owed", "total", "unread")

    def __init__(self, keep: int | None) -> None:
        self.keep = keep
        self.buffer = bytearray()
        self.credit = WINDOW
        self.owed = 0
        self.total = 0
        self.eof = False
        self.unread = False

    def accept(self, payload: bytes, eof: bool) -> int:
        """Takes what came; the credit to give back now. Raises ``WireError`` for what the guest had no right to
        send.
        """
        size = len(payload)
        if self.eof:
            raise WireError(f"{size} bytes on a pipe that has ended")
        if size > self.credit:
            raise WireError(f"{size} bytes on a pipe with credit for {self.credit}")
        if not size and not eof:
            raise WireError("DATA without a byte and without EOF")
        self.eof = eof
        self.credit -= size
        self.total += size
        if self.unread:
            return self.give(size)
        if self.keep is None:
            self.buffer += payload
            return 0
        if self.total > self.keep:
            raise WireError(f"{self.total} bytes on a pipe of which {self.keep} were asked for")
        self.buffer += payload
        return self.give(size)

    def give(self, size: int) -> int:
        """Counts ``size`` bytes as taken; the credit to send, 0 until it is worth a frame (half a window)."""
        self.owed += size
        if self.owed < WINDOW // 2 or self.eof:
            return 0
        owed, self.owed = self.owed, 0
        self.credit += owed
        return owed


class Question:
    """One ``PING`` or ``LOOK``, which is no operation."""

    __slots__ = ("_answer", "_done", "_error", "asked", "kind")

    def __init__(self, kind: int, asked: bytes = b"") -> None:
        self.kind = kind
        self.asked = asked
        self._answer: bytes | None = None
        self._error: SandboxLost | None = None
        self._done = anyio.Event()

    async def answer(self) -> bytes:
        """Waits for it. Raises ``SandboxLost``; the deadline is the caller's. Safe to cancel and to repeat."""
        await self._done.wait()
        if self._answer is None:
            assert self._error is not None
            raise copy.copy(self._error)
        return self._answer

    def fail(self, error: SandboxLost) -> None:
        """The sandbox is gone, and no answer will come."""
        self._error = error
        self._done.set()

    def takes(self, frame: frames.Frame) -> bool:
        """Whether that is its answer; if so it is kept, and who waits here is woken."""
        if self.kind == frames.PING:
            right = frame.type == frames.PONG and frame.payload == self.asked
        else:
            right = frame.type == frames.LOOKED
        if right:
            self._answer = frame.payload
            self._done.set()
        return right


class Stream:
    """One ``RUN``, ``CONNECT``, ``KILL_ALL`` or ``LIST``. ``done`` is set when the last word about it has come."""

    __slots__ = (
        "_news",
        "begun",
        "closed",
        "deadline",
        "done",
        "end",
        "error",
        "id",
        "incoming",
        "killed",
        "outgoing",
        "output_limit",
        "pid",
        "refused",
        "reply",
    )

    def __init__(
        self,
        ident: int,
        incoming: dict[int, Incoming],
        outgoing: tuple[int, ...] = (),
    ) -> None:
        self.id = ident
        self.begun = perf_counter()
        self.deadline = 0.0
        """Seconds, 0 none; with ``output_limit`` (bytes, 0 none) it tells whether an END may claim that it was
        passed.
        """
        self.output_limit = 0
        self.incoming = incoming
        self.outgoing = dict.fromkeys(outgoing, FIRST_CREDIT)
        """Pipe towards the guest -> credit."""
        self.closed: set[int] = set()
        """Pipes towards the guest whose EOF was sent; credit for what was sent before may still come."""
        self.pid: int | None = None
        self.end: guest.End | None = None
        self.refused: guest.Refused | None = None
        self.reply: bytes | None = None
        self.error: SandboxLost | None = None
        self.killed = False
        self.done = anyio.Event()
        self._news: anyio.Event | None = None

    @property
    def over(self) -> bool:
        """Nothing will come any more."""
        return self.done.is_set()

    async def change(self) -> None:
        """Waits until something came: data, credit, the start, the end. Returns at once after the end."""
        if self.done.is_set():
            return
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    def take(self, pipe: int, most: int) -> tuple[bytes, int]:
        """Up to ``most`` bytes that came on a flowing pipe, and the credit to send for them."""
        incoming = self.incoming[pipe]
        if len(incoming.buffer) <= most:
            data = bytes(incoming.buffer)
            incoming.buffer.clear()
        else:
            data = bytes(memoryview(incoming.buffer)[:most])
            del incoming.buffer[:most]
        return data, incoming.give(len(data))

    def on_frame(self, frame: frames.Frame) -> int:
        """Takes one frame of this stream; the credit to give back on its pipe. Raises ``WireError``."""
        credit = 0
        kind = frame.type
        if kind == frames.GUEST_DATA:
            incoming = self.incoming.get(frame.pipe)
            if incoming is None:
                raise WireError(f"DATA on pipe {frame.pipe}, which this operation does not have")
            credit = incoming.accept(frame.payload, frame.eof)
        elif kind == frames.END:
            self.end = self._checked(guest.END_LAYOUT.decode(frame.payload))
            self.finish()
            return 0
        elif kind == frames.STARTED:
            if self.pid is not None or not self._runs():
                raise WireError("STARTED twice, or for what does not start")
            self.pid = guest.STARTED_LAYOUT.decode(frame.payload).pid
        elif kind == frames.GUEST_CREDIT:
            self._credited(frame)
        elif kind == frames.REFUSED:
            if self.pid is not None or any(incoming.total for incoming in self.incoming.values()):
                raise WireError("REFUSED after STARTED, or after output")
            self.refused = guest.REFUSED_LAYOUT.decode(frame.payload)
            self.finish()
            return 0
        elif kind == frames.REPLY:
            if self._runs():
                raise WireError("REPLY to what was no question")
            self.reply = frame.payload
            self.finish()
            return 0
        if self._news is not None:
            self._news.set()
            self._news = None
        return credit

    def fail(self, error: SandboxLost) -> None:
        """The sandbox is gone: wakes all who wait here. The first error stays."""
        if not self.done.is_set():
            self.error = error
            self.finish()

    def takes(self, pipe: int) -> bool:
        """Bytes can be sent down this pipe."""
        return pipe in self.outgoing and pipe not in self.closed and not self.over

    def lost(self) -> SandboxLost:
        """The error to raise: a copy, since several tasks raise it and each adds its own traceback."""
        assert self.error is not None
        return copy.copy(self.error)

    def finish(self) -> None:
        """Wakes all who wait here, for the last time."""
        self.done.set()
        if self._news is not None:
            self._news.set()
            self._news = None

    def _runs(self) -> bool:
        return bool(self.incoming)

    def _credited(self, frame: frames.Frame) -> None:
        amount = guest.decode_credit(frame.payload)
        have = self.outgoing.get(frame.pipe)
        if have is None:
            raise WireError(f"CREDIT on pipe {frame.pipe}, which this operation does not have")
        if have + amount > MAX_CREDIT:
            raise WireError(f"CREDIT of {amount} over {have} passes 2^31")
        self.outgoing[frame.pipe] = have + amount

    def _checked(self, end: guest.End) -> guest.End:
        if not self._runs():
            raise WireError("END of a question")
        how = end.how
        if how > guest.SIGNALED:
            # A guest that was taken over could turn a wrong answer into a limit, or the other way round.
            early = not self.deadline or perf_counter() - self.begun + CLOCK_SLACK < self.deadline
            if how == guest.DEADLINE and early:
                raise WireError(f"END says that the deadline of {self.deadline:g} s has passed, which it has not")
            if how == guest.OUTPUT_LIMIT and not 0 < self.output_limit <= end.produced[0] + end.produced[1]:
                raise WireError(
                    f"END says that the output limit of {self.output_limit} bytes was passed, which it was not"
                )
            if how == guest.KILLED and not self.killed:
                raise WireError("END says that it was killed on request; nobody asked")
        for pipe, incoming in self.incoming.items():
            produced = end.produced[pipe - 1]
            if produced < incoming.total:
                raise WireError(f"END says {produced} bytes came out of pipe {pipe}, and sent {incoming.total}")
            whole = produced if incoming.keep is None else min(produced, incoming.keep)
            if (
                incoming.total < whole
                and end.how <= guest.SIGNALED
                and not end.held_pipe(pipe)
                and pipe != frames.CHANNEL
            ):
                raise WireError(
                    f"END says {produced} bytes came out of pipe {pipe}, of which only {incoming.total} were sent"
                )
            incoming.eof = incoming.eof or not end.held_pipe(pipe)
        return end
