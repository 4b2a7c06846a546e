"""Frames over a descriptor, and the names that both sides of a call share.

A frame is four bytes of length (little-endian, of what follows), one byte of kind, and the payload.

    to the candidate     P program      plain (text, entry point)
                         C call         plain (args, kwargs); its arguments are not looked at afterwards
                         L live call    the same; arguments that the function changed come back
    from the candidate   H hello        the interpreter is up, nothing of the candidate has run
                         B broken       UTF-8 text: the program has no function to call
                         A answer       plain ("ok", value, changed) | ("raised", type, args, text) | ("unfit", text)
    to the grader        T test         plain (prompt, test, entry point, planned calls, seconds of CPU)
                         A answer       as it came
                         G gone         no more answers will come
    from the grader      L live call    as above
                         V verdict      plain (word, reason)

``changed`` maps a position or a keyword to the new content of a list, dict, set or bytearray. Whatever the candidate
sends is its own claim: it can only ever be a value that its function might have returned.
"""

from __future__ import annotations

import posix

MAX_FRAME = (8 << 20) + 4096

# fmt: off
EXCEPTIONS = (
    "ArithmeticError", "AssertionError", "AttributeError", "BlockingIOError", "BrokenPipeError", "BufferError",
    "ChildProcessError", "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError",
    "ConnectionResetError", "EOFError", "Exception", "FileExistsError", "FileNotFoundError", "FloatingPointError",
    "ImportError", "IndentationError", "IndexError", "InterruptedError", "IsADirectoryError", "KeyError",
    "LookupError", "MemoryError", "ModuleNotFoundError", "NameError", "NotADirectoryError", "NotImplementedError",
    "OSError", "OverflowError", "PermissionError", "ProcessLookupError", "RecursionError", "ReferenceError",
    "RuntimeError", "StopAsyncIteration", "StopIteration", "SyntaxError", "SystemError", "TabError", "TimeoutError",
    "TypeError", "UnboundLocalError", "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeError",
    "UnicodeTranslateError", "ValueError", "ZeroDivisionError",
)
# fmt: on
"""Exceptions that a test can expect. Any other one arrives as the nearest of its bases in this list."""


class Channel:
    """One descriptor. ``receive`` gives (kind, payload), or None at the end of the stream."""

    # Taken now: a candidate can replace them in the modules later, which would only break its own answers.
    _read = staticmethod(posix.read)
    _write = staticmethod(posix.write)

    def __init__(self, fd: int, buffered: bytes = b"") -> None:
        self.fd = fd
        self.buffer = bytearray(buffered)

    def fill(self, size: int) -> bool:
        """Reads until so many bytes are there. False at the end of the stream."""
        while len(self.buffer) < size:
            chunk = self._read(self.fd, 262144)
            if not chunk:
                return False
            self.buffer += chunk
        return True

    def receive(self) -> tuple[bytes, bytes] | None:
        """The next frame, as (kind, payload). None at the end, and for a length that no frame has."""
        if not self.fill(4):
            return None
        size = int.from_bytes(self.buffer[:4], "little")
        if not 1 <= size <= MAX_FRAME or not self.fill(4 + size):
            return None
        kind, payload = bytes(self.buffer[4:5]), bytes(self.buffer[5 : 4 + size])
        del self.buffer[: 4 + size]
        return kind, payload

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Writes one frame, as fast as the other side reads. Raises ``OSError``."""
        data = (len(payload) + 1).to_bytes(4, "little") + kind + payload
        while data:
            data = data[self._write(self.fd, data) :]
