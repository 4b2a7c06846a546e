"""Frames and fields of the guest protocol (docs/protocol.md): what every message is made of.

Whatever breaks the protocol raises ``WireError``. The threat: everything that comes out of a sandbox is hostile, so a
length is checked before a byte is kept, and a decoder that has seen a violation stays broken.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

HEADER: Final = struct.Struct("<IBBHI")
MAX_PAYLOAD: Final = 65_536
MAX_MESSAGE: Final = 16 << 20
MAX_CREDIT: Final = 1 << 31
FIRST_CREDIT: Final = 262_144
MORE: Final = 1
EOF: Final = 2

HELLO: Final = 0x01
RUN: Final = 0x02
DATA: Final = 0x03
CREDIT: Final = 0x04
SIGNAL: Final = 0x05
RESIZE: Final = 0x06
KILL: Final = 0x07
KILL_ALL: Final = 0x08
LIST: Final = 0x09
CONNECT: Final = 0x0A
CLOSE: Final = 0x0B
PING: Final = 0x0C
LOOK: Final = 0x0D

GUEST_HELLO: Final = 0x81
STARTED: Final = 0x82
GUEST_DATA: Final = 0x83
GUEST_CREDIT: Final = 0x84
END: Final = 0x86
REFUSED: Final = 0x87
REPLY: Final = 0x88
PONG: Final = 0x8C
LOOKED: Final = 0x8D
FATAL: Final = 0x8F

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
CHANNEL: Final = 3

Side = Literal["guest", "host"]

_TYPES: Final[dict[Side, frozenset[int]]] = {
    "guest": frozenset({GUEST_HELLO, STARTED, GUEST_DATA, GUEST_CREDIT, END, REFUSED, REPLY, PONG, LOOKED, FATAL}),
    "host": frozenset({HELLO, RUN, DATA, CREDIT, SIGNAL, RESIZE, KILL, KILL_ALL, LIST, CONNECT, CLOSE, PING, LOOK}),
}
_FIRST: Final[dict[Side, frozenset[int]]] = {"guest": frozenset({GUEST_HELLO, FATAL}), "host": frozenset({HELLO})}
_CONNECTION: Final = frozenset({HELLO, PING, LOOK, GUEST_HELLO, PONG, LOOKED, FATAL})
_TOWARDS_HOST: Final = frozenset({GUEST_DATA, CREDIT})
_TOWARDS_GUEST: Final = frozenset({DATA, GUEST_CREDIT})
_EXACT: Final = {CREDIT: 4, GUEST_CREDIT: 4, SIGNAL: 5, RESIZE: 4, KILL: 0, KILL_ALL: 0, LIST: 0, CLOSE: 0, LOOK: 0}


class WireError(ValueError):
    """The bytes are not what the protocol allows. The message says which rule and the value seen; nothing was kept."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame; for ``RUN`` the whole message, its ``MORE`` frames joined."""

    type: int
    stream: int
    payload: bytes = b""
    pipe: int = 0
    eof: bool = False


def encode_frame(kind: int, stream: int = 0, payload: bytes = b"", *, pipe: int = 0, flags: int = 0) -> bytes:
    """One frame as bytes. Raises ``WireError`` if the payload is above 65,536 bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a frame holds at most {MAX_PAYLOAD} bytes of payload, not {len(payload)}")
    return HEADER.pack(len(payload), kind, flags, pipe, stream) + payload


def encode_message(kind: int, stream: int, payload: bytes) -> bytes:
    """One message as one or more frames, all but the last with ``MORE``. Only ``RUN`` may need more than one frame."""
    if len(payload) <= MAX_PAYLOAD:
        return HEADER.pack(len(payload), kind, 0, 0, stream) + payload
    if kind != RUN or len(payload) > MAX_MESSAGE:
        raise WireError(f"a message of type {kind:#04x} cannot have {len(payload)} bytes")
    parts: list[bytes] = []
    for start in range(0, len(payload), MAX_PAYLOAD):
        piece = payload[start : start + MAX_PAYLOAD]
        more = MORE if start + MAX_PAYLOAD < len(payload) else 0
        parts += (HEADER.pack(len(piece), kind, more, 0, stream), piece)
    return b"".join(parts)


def encode_data(kind: int, stream: int, pipe: int, data: bytes, eof: bool = False) -> Iterator[bytes]:
    """``DATA`` frames for these bytes, in order, the last with ``EOF`` if asked for. Credit is the caller's."""
    view = memoryview(data)
    last = max(0, (len(view) - 1) // MAX_PAYLOAD) * MAX_PAYLOAD
    for start in range(0, last + 1, MAX_PAYLOAD):
        piece = view[start : start + MAX_PAYLOAD]
        flags = EOF if eof and start == last else 0
        if piece or flags:
            yield HEADER.pack(len(piece), kind, flags, pipe, stream) + piece


class FrameDecoder:
    """Cuts the byte stream that ``side`` sends into frames. Keeps at most one unfinished frame, and ``RUN`` parts.

    ``greeted``: the HELLO was on another stream, which this one goes on from. After a ``WireError`` every further
    ``feed`` raises it again: there is no way back into a broken stream.
    """

    __slots__ = ("_broken", "_first", "_parts", "_rest", "_side", "_types")

    def __init__(self, side: Side, *, greeted: bool = False) -> None:
        self._side: Side = side
        self._types = _TYPES[side]
        self._first = not greeted
        self._rest = bytearray()
        self._parts: dict[int, bytearray] = {}
        self._broken: str | None = None

    @property
    def idle(self) -> bool:
        """No frame and no message is half read: the stream may end here."""
        return not self._rest and not self._parts

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that these bytes complete, in order. A violation raises, also if whole frames came before it."""
        if self._broken is not None:
            raise WireError(self._broken)
        try:
            if not self._rest:
                frames, used = self._cut(data)
                if used < len(data):
                    self._rest += memoryview(data)[used:]
                return frames
            self._rest += data
            frames, used = self._cut(self._rest)
            del self._rest[:used]
            return frames
        except WireError as error:
            self._broken = str(error)
            self._rest.clear()
            self._parts.clear()
            raise

    def _cut(self, data: bytes | bytearray | memoryview) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        at, end = 0, len(data)
        unpack = HEADER.unpack_from
        while end - at >= 12:
            length, kind, flags, pipe, stream = unpack(data, at)
            self._check(length, kind, flags, pipe, stream)
            if end - at - 12 < length:
                break
            payload = bytes(data[at + 12 : at + 12 + length]) if length else b""
            at += 12 + length
            self._first = False
            if kind == RUN:
                whole = self._join(stream, payload, bool(flags & MORE))
                if whole is None:
                    continue
                payload = whole
            frames.append(Frame(kind, stream, payload, pipe, flags & EOF != 0))
        return frames, at

    def _check(self, length: int, kind: int, flags: int, pipe: int, stream: int) -> None:
        if length > MAX_PAYLOAD:
            raise WireError(f"frame of {length} bytes; at most {MAX_PAYLOAD} are allowed")
        if kind not in self._types:
            raise WireError(f"frame type {kind:#04x} is not one that the {self._side} sends")
        if (kind in (HELLO, GUEST_HELLO)) != self._first and not (self._first and kind in _FIRST[self._side]):
            raise WireError(f"frame type {kind:#04x}: HELLO comes first, and once")
        if flags and not (flags == MORE and kind == RUN) and not (flags == EOF and kind in (DATA, GUEST_DATA)):
            raise WireError(f"flags {flags:#04x} are not allowed in frame type {kind:#04x}")
        if kind in _TOWARDS_HOST:
            if not 1 <= pipe <= 3:
                raise WireError(f"pipe {pipe} in frame type {kind:#04x}; 1, 2 and 3 lead to the host")
        elif kind in _TOWARDS_GUEST:
            if pipe not in (STDIN, CHANNEL):
                raise WireError(f"pipe {pipe} in frame type {kind:#04x}; 0 and 3 lead to the guest")
        elif pipe:
            raise WireError(f"pipe {pipe} in frame type {kind:#04x}, which has none")
        if (kind in _CONNECTION) != (stream == 0):
            raise WireError(f"stream {stream} in frame type {kind:#04x}")
        exact = _EXACT.get(kind)
        if (exact is not None and length != exact) or (kind in (PING, PONG) and length > 64):
            raise WireError(f"payload of {length} bytes in frame type {kind:#04x}")

    def _join(self, stream: int, piece: bytes, more: bool) -> bytes | None:
        parts = self._parts.get(stream)
        if parts is None and not more:
            return piece
        parts = self._parts.setdefault(stream, bytearray())
        if len(parts) + len(piece) > MAX_MESSAGE:
            raise WireError(f"a message passes {MAX_MESSAGE} bytes")
        parts += piece
        if more:
            return None
        return bytes(self._parts.pop(stream))


FIELD: Final = struct.Struct("<BI")


def encode_fields(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Fields as bytes, in the order given."""
    parts: list[bytes] = []
    for tag, value in fields:
        parts += (FIELD.pack(tag, len(value)), value)
    return b"".join(parts)


def decode_fields(payload: bytes) -> list[tuple[int, bytes]]:
    """The fields of a payload, in order. What tags mean, and which repeat, is the message's business."""
    fields: list[tuple[int, bytes]] = []
    at, end = 0, len(payload)
    while at < end:
        if end - at < 5:
            raise WireError(f"field header cut off: {end - at} of 5 bytes")
        tag, length = FIELD.unpack_from(payload, at)
        at += 5
        if length > end - at:
            raise WireError(f"field {tag} of {length} bytes passes the end of its message by {length - (end - at)}")
        fields.append((tag, payload[at : at + length]))
        at += length
    return fields
