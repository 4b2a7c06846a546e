"""The bytes with which a guest leaves the protocol, one sequence for each ``Lie``."""

from __future__ import annotations

from collections.abc import Iterator

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


def bytes_of(lie: Lie, stream: int, window: int) -> Iterator[bytes]:
    """What is sent after the STARTED of ``stream``."""
    if lie == "malformed":
        yield frames.encode_frame(frames.END, stream, frames.encode_fields([(1, b"\0"), (77, b"?")]))
    elif lie == "oversized":
        yield frames.HEADER.pack(1 << 20, frames.GUEST_DATA, 0, 1, stream) + b"x" * 64
    elif lie == "unknown_type":
        yield frames.encode_frame(0xEE, stream, b"?")
    elif lie == "end_twice":
        yield eof(stream) + end(stream) + end(stream, code=1)
    elif lie == "data_after_end":
        yield eof(stream) + end(stream) + _data(stream, b"too late")
    elif lie == "started_twice":
        yield frames.encode_frame(frames.STARTED, stream, wire.STARTED_LAYOUT.encode(wire.Started(pid=99)))
    elif lie == "unknown_stream":
        yield _data(999_999, b"from nowhere")
    elif lie == "other_stream":
        yield eof(stream) + end(stream + 1)
    elif lie == "contradiction":
        yield _data(stream, b"twelve bytes") + eof(stream) + end(stream, produced=(3, 0, 0))
    elif lie == "credit_abuse":
        for _ in range(window // frames.MAX_PAYLOAD + 2):
            yield _data(stream, b"x" * frames.MAX_PAYLOAD)
    elif lie == "credit_overflow":
        for _ in range(2):
            yield frames.encode_frame(
                frames.GUEST_CREDIT, stream, wire.encode_credit(frames.MAX_CREDIT), pipe=frames.STDIN
            )
    else:
        while True:
            yield _data(stream, b"x" * frames.MAX_PAYLOAD, frames.STDERR)
