"""Frames of ``inside/channel.py`` on the host: split and passed on; what a candidate sent is never decoded here."""

from __future__ import annotations

from proofbox.verify.inside.channel import MAX_FRAME


class BadFrame(Exception):
    """A length that no frame has."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One whole frame."""
    return (len(payload) + 1).to_bytes(4, "little") + kind + payload


class Splitter:
    """Takes bytes as they come and gives whole frames. Holds at most one frame that is not whole."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, header included. Raises ``BadFrame``; the stream has no sense after that."""
        self.buffer += data
        found = []
        at = 0
        while len(self.buffer) - at >= 4:
            size = int.from_bytes(self.buffer[at : at + 4], "little")
            if not 1 <= size <= MAX_FRAME:
                raise BadFrame(f"a frame of {size} bytes (1 to {MAX_FRAME} are allowed)")
            if len(self.buffer) - at < 4 + size:
                break
            found.append(bytes(self.buffer[at : at + 4 + size]))
            at += 4 + size
        del self.buffer[:at]
        return found
