"""The bytes with which a guest leaves the protocol, one sequence for each ``Lie``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from proofbox.runtimes.fake.faults import Lie
from proofbox.wire import frames
from proofbox.wire import guest as wire


def _data(stream: int, data: bytes, pipe: int = frames.STDOUT, flags: int = 0) -> bytes:
    return frames.encode_frame(frames.GUEST_DATA, stream, data, pipe=pipe, flags=flags)


def end(stream: int, **values: object) -> bytes:
    """An END as an honest guest sends it, but for what is named."""
    made = {"how": wire.EXITED, "code": 0, "gone": True, **values}
    return frames.encode_frame(frames.END, stream, wire.END_LAYOUT.encode(wire.End(**made)))  # type: ignore[arg-type]


def eof(stream: int) -> bytes:
    """The end of stdout and stderr."""
    return _data(stream, b"", 1, frames.EOF) + _data(stream, b"", 2, frames.EOF)


def _flood(stream: int, window: int) -> Iterator[bytes]:
    while True:
        yield _data(stream, b"x" * frames.MAX_PAYLOAD, frames.STDERR)


def _started(stream: int) -> bytes:
    return frames.encode_frame(frames.STARTED, stream, wire.STARTED_LAYOUT.encode(wire.Started(pid=99)))


def _credit(stream: int) -> bytes:
    payload = wire.encode_credit(frames.MAX_CREDIT)
    return frames.encode_frame(frames.GUEST_CREDIT, stream, payload, pipe=frames.STDIN)


_LIES: Final[dict[Lie, Callable[[int, int], Iterable[bytes]]]] = {
    "malformed": lambda n, _: [frames.encode_frame(frames.END, n, frames.encode_fields([(1, b"\0"), (77, b"?")]))],
    "oversized": lambda n, _: [frames.HEADER.pack(1 << 20, frames.GUEST_DATA, 0, 1, n) + b"x" * 64],
    "unknown_type": lambda n, _: [frames.encode_frame(0xEE, n, b"?")],
    "end_twice": lambda n, _: [eof(n), end(n), end(n, code=1)],
    "data_after_end": lambda n, _: [eof(n), end(n), _data(n, b"too late")],
    "started_twice": lambda n, _: [_started(n)],
    "unknown_stream": lambda n, _: [_data(999_999, b"from nowhere")],
    "other_stream": lambda n, _: [eof(n), end(n + 1)],
    "contradiction": lambda n, _: [_data(n, b"twelve bytes"), eof(n), end(n, produced=(3, 0, 0))],
    "credit_abuse": lambda n, window: [_data(n, b"x" * frames.MAX_PAYLOAD)] * (window // frames.MAX_PAYLOAD + 2),
    "credit_overflow": lambda n, _: [_credit(n), _credit(n)],
    "flood": _flood,
}


def bytes_of(lie: Lie, stream: int, window: int) -> Iterable[bytes]:
    """What is sent after the STARTED of ``stream``."""
    return _LIES[lie](stream, window)
