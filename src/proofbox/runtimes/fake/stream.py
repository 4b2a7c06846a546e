"""One stream of the fake guest: its pipes, their credit, and why it was ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from proofbox.wire import frames
from proofbox.wire import guest as wire


class OutputLimitPassed(Exception):
    """The command wrote more than it may."""


@dataclass(slots=True)
class FakeStream:
    """Pipes 0 and 3 come from the host, 1, 2 and 3 go to it."""

    number: int
    pid: int
    run: wire.Run
    send: Callable[[bytes], Awaitable[None]]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended_by: tuple[int, int] | None = None
    """How and code of the END, where the host ended the command."""
    produced: list[int] = field(default_factory=lambda: [0, 0, 0])
    answer: bytes | None = None
    """The frame that ended it, sent again when it is asked for again."""
    _credit: dict[int, int] = field(default_factory=dict)
    _inbox: dict[int, bytearray] = field(
        default_factory=lambda: {frames.STDIN: bytearray(), frames.CHANNEL: bytearray()}
    )
    _ended: set[int] = field(default_factory=set)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._credit = dict.fromkeys((1, 2, 3), self.run.window)
        if not self.run.stdin and self.run.file_op not in (wire.WRITE, wire.WRITE_TREE):
            self._ended.add(frames.STDIN)
        if not self.run.channel:
            self._ended.add(frames.CHANNEL)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def take(self, frame: frames.Frame) -> None:
        """DATA from the host."""
        if frame.pipe not in self._ended:
            self._inbox[frame.pipe] += frame.payload
            if frame.eof:
                self._ended.add(frame.pipe)
            self._notify()

    def allow(self, pipe: int, amount: int) -> None:
        """CREDIT from the host."""
        self._credit[pipe] += amount
        if self._credit[pipe] > frames.MAX_CREDIT:
            raise frames.WireError(f"credit of {self._credit[pipe]} bytes")
        self._notify()

    def end(self, how: int, code: int) -> None:
        """Ends the command from outside."""
        if self.ended_by is None:
            self.ended_by = (how, code)
            self.scope.cancel()

    async def receive(self, pipe: int) -> bytes:
        """What has come on pipe 0 or 3, at least one byte, or ``b""`` at its end."""
        while not self._inbox[pipe]:
            if pipe in self._ended:
                return b""
            await self._changed.wait()
        data = bytes(self._inbox[pipe])
        self._inbox[pipe].clear()
        await self.send(frames.encode_frame(frames.GUEST_CREDIT, self.number, wire.encode_credit(len(data)), pipe=pipe))
        return data

    async def write(self, pipe: int, data: bytes) -> None:
        """Bytes to the host, as its credit allows; what is above ``keep`` is counted only."""
        if pipe == frames.STDERR and (self.run.merge or self.run.pty is not None):
            pipe = frames.STDOUT
        kept = len(data)
        if self.run.keep is not None and pipe != frames.CHANNEL:
            kept = min(kept, max(0, self.run.keep - self.produced[pipe - 1]))
        self.produced[pipe - 1] += len(data)
        at = 0
        while at < kept:
            while not self._credit[pipe]:
                await self._changed.wait()
            size = min(kept - at, self._credit[pipe], frames.MAX_PAYLOAD)
            self._credit[pipe] -= size
            await self.send(frames.encode_frame(frames.GUEST_DATA, self.number, data[at : at + size], pipe=pipe))
            at += size
        if self.run.output_limit and self.produced[0] + self.produced[1] > self.run.output_limit:
            raise OutputLimitPassed
        # A program that only writes must not keep its END and the other streams waiting.
        await anyio.lowlevel.checkpoint()

    def pipes(self) -> list[int]:
        """Those that lead to the host and need an EOF."""
        if not self.pid:  # a connection
            return [frames.CHANNEL]
        if self.run.file_op is not None or self.run.merge or self.run.pty is not None:
            out = [frames.STDOUT]
        else:
            out = [frames.STDOUT, frames.STDERR]
        return [*out, frames.CHANNEL] if self.run.channel else out
