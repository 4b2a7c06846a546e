"""The event log: one JSON line an event, appended and never changed.

A line is ``{"v": format, "n": position from 0, "c": crc32 of them and of the event's bytes, "e": event}`` and a
newline. So a line that a crash cut or tore is told from a good one and dropped; any other damage is an error, because
what is lost in the middle may be a booked result.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from proofbox.errors import StoreFailed
from proofbox.model.run import FORMAT
from proofbox.model.trace import Event


class _Line(msgspec.Struct):
    v: int
    n: int
    c: str
    e: msgspec.Raw


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_event = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


def encode_line(event: Event, position: int) -> bytes:
    """One line with its newline. What it returns is proven to be readable. Raises ``StoreFailed``, nothing else."""
    try:
        body = _encode(event)
        _decode_event(body)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise StoreFailed(f"an event that cannot be recorded ({type(event).__name__}): {error}") from error
    return b'{"v":%d,"n":%d,"c":"%s","e":%s}\n' % (FORMAT, position, _checksum(FORMAT, position, body), body)


def _checksum(version: int, position: int, body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(b"%d %d " % (version, position) + body)


def _decode(line: bytes, position: int) -> Event | None:
    """The event, or None for a line that is not whole. Raises ``StoreFailed`` for one of a newer format."""
    try:
        parts = _decode_line(line)
        if parts.v > FORMAT:
            raise StoreFailed(
                f"the log was written in format {parts.v}; this Proofbox reads up to {FORMAT}: upgrade it"
            )
        if parts.n != position or parts.c.encode() != _checksum(parts.v, parts.n, bytes(parts.e)):
            return None
        return _decode_event(parts.e)
    except (msgspec.DecodeError, UnicodeError):
        return None


@dataclass(slots=True)
class LogReader:
    """Iterates over the events of a log. Afterwards ``good`` is the length of what is whole, ``torn`` that of the rest.

    Reads while another process appends, too: what that one is about to write looks like a torn line. Raises
    ``StoreFailed`` where the file cannot be read, is damaged before its last line, or is of a newer format.
    """

    path: Path
    good: int = field(default=0, init=False)
    torn: int = field(default=0, init=False)
    count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[Event]:
        self.good = self.torn = self.count = 0
        try:
            with open(self.path, "rb") as file:
                yield from self._events(file)
        except OSError as error:
            raise StoreFailed(f"the log {self.path} cannot be read: {error.strerror}") from error

    def _events(self, file: BinaryIO) -> Iterator[Event]:
        for line in file:
            event = None if self.torn or not line.endswith(b"\n") else _decode(line, self.count)
            if event is None and not self.torn:
                self.torn = len(line)
            elif event is None:
                raise StoreFailed(
                    f"the log {self.path} is damaged at line {self.count + 1} (byte {self.good}), "
                    "before its last line: restore it from a copy; what stands before that byte is whole"
                )
            else:
                self.good += len(line)
                self.count += 1
                yield event


class LogFile:
    """The one writer of a log: holds its lock from ``__init__`` to ``close``. Blocks; belongs into a thread.

    On opening, ``see`` gets every event that is there, and a torn last line is cut off; ``dropped`` is its length.
    After an error of ``append`` the file ends, at worst, in a torn line, and the object takes nothing more.
    """

    def __init__(self, path: Path, see: Callable[[Event], object] = lambda event: None) -> None:
        self._path = path
        self._failed: StoreFailed | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreFailed(f"the log {path} cannot be opened for writing: {error.strerror}") from error
        try:
            self._lock()
            reader = LogReader(path)
            for event in reader:
                see(event)
            self.dropped = reader.torn
            self._position = reader.count
            self._end = reader.good
            if reader.torn:
                os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
        except BaseException:
            os.close(self._fd)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreFailed(
                f"another process is writing the run {self._path.parent.name}: wait until it has ended, or end it"
            ) from None

    def append(self, events: Sequence[Event], *, durable: bool) -> None:
        """Writes the events in one go; with ``durable`` they survive a power cut when this returns.

        Raises ``StoreFailed`` (disk full, for instance), and the same again ever after: once fsync has failed, nobody
        knows what is on the disk.
        """
        if self._failed is not None:
            raise self._failed
        try:
            data = b"".join(encode_line(event, self._position + i) for i, event in enumerate(events))
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            if durable:
                os.fdatasync(self._fd)
        except (OSError, StoreFailed) as error:
            self._failed = self._fail(error)
            raise self._failed from error
        self._position += len(events)
        self._end += len(data)

    def _fail(self, error: OSError | StoreFailed) -> StoreFailed:
        try:
            os.ftruncate(self._fd, self._end)
        except OSError:
            pass  # then the torn line stays: the next reader drops it
        if isinstance(error, StoreFailed):
            return error
        return StoreFailed(
            f"the log {self._path} could not be written after {self._end} bytes: {error.strerror}; "
            "what was acknowledged before is there: make room, then resume the run"
        )

    def close(self) -> None:
        """Gives the lock back. Idempotent."""
        if self._fd >= 0:
            fcntl.flock(
                self._fd, fcntl.LOCK_UN
            )  # a child that still has the descriptor must not go on holding the lock
            os.close(self._fd)
            self._fd = -1
