"""Tar archives as they travel on the pipes of a tree operation (docs/protocol.md): entries to bytes, bytes to entries.

Strict: what the guest does not write (GNU's extensions, unknown records, paths that are not below the tree) is a
``WireError``. An archive of somebody else's goes to the guest unread, and it is the guest that takes those too.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from proofbox.wire.frames import WireError

BLOCK: Final = 512
CLOSING: Final = bytes(2 * BLOCK)
"""The end of an archive."""
PATH_MOST: Final = 4095
DEPTH_MOST: Final = 256
RECORDS_MOST: Final = 65_536
SECONDS_MOST: Final = 1 << 41

FILE, HARD_LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
TYPES: Final = (FILE, HARD_LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO)

_OCTAL: Final = re.compile(rb"[0-7]+\0")
_MTIME: Final = re.compile(rb"(-?)([0-9]{1,20})\.([0-9]{9})")
_DECIMAL: Final = re.compile(rb"[0-9]{1,20}")
_LENGTH: Final = re.compile(rb"([0-9]{1,6}) ([A-Za-z]+)=")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. ``mode`` is permission bits; ``target`` is a link's; ``size`` is that of a file's content, which
    follows.
    """

    type: bytes
    path: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    target: bytes = b""


def padding(size: int) -> bytes:
    """What fills the last block of a content."""
    return bytes(-size % BLOCK)


def header(entry: Entry) -> bytes:
    """The blocks that come before its content. Raises ``WireError`` for a path that no archive of ours has."""
    _check_path(entry.path)
    seconds, nanoseconds = divmod(entry.mtime_ns, 1_000_000_000)
    records = {}
    if len(entry.path) + (entry.type == DIRECTORY) > 100:
        records[b"path"] = entry.path
    if len(entry.target) > 100:
        records[b"linkpath"] = entry.target
    if not all(map(bytes.isascii, records.values())):
        records = {b"hdrcharset": b"BINARY", **records}
    for key, value, most in (
        (b"size", entry.size, 1 << 33),
        (b"uid", entry.uid, 1 << 21),
        (b"gid", entry.gid, 1 << 21),
    ):
        if value >= most:
            records[key] = b"%d" % value
    if nanoseconds or not 0 <= seconds < 1 << 33:
        whole, fraction = divmod(abs(entry.mtime_ns), 1_000_000_000)
        records[b"mtime"] = b"%s%d.%09d" % (b"-" if entry.mtime_ns < 0 else b"", whole, fraction)
    raw = b"".join(_record(key, value) for key, value in records.items())
    name = entry.path + b"/" if entry.type == DIRECTORY else entry.path
    block = _block(entry.type, name, entry.target, entry.mode, entry.uid, entry.gid, entry.size, seconds)
    if not raw:
        return block
    ahead = _block(b"x", b"././@PaxHeader", b"", 0o644, 0, 0, len(raw), 0)
    return ahead + raw + padding(len(raw)) + block


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    total = rest + 1
    while total != rest + len(b"%d" % total):
        total = rest + len(b"%d" % total)
    return b"%d %s=%s\n" % (total, key, value)


def _block(type_: bytes, name: bytes, target: bytes, mode: int, uid: int, gid: int, size: int, seconds: int) -> bytes:
    def octal(value: int, digits: int) -> bytes:
        return b"%0*o\0" % (digits, value if 0 <= value < 8**digits else 0)

    numbers = octal(mode, 7) + octal(uid, 7) + octal(gid, 7) + octal(size, 11) + octal(seconds, 11)
    head = name[:100].ljust(100, b"\0") + numbers
    tail = type_ + target[:100].ljust(100, b"\0") + b"ustar\00000" + bytes(64) + octal(0, 7) + octal(0, 7) + bytes(167)
    return head + b"%06o\0 " % (sum(head) + sum(tail) + 8 * 32) + tail


class TarDecoder:
    """Turns bytes, however they are cut, into entries and pieces of content. Holds less than a header of them."""

    __slots__ = ("_ahead", "_broken", "_buffer", "_closing", "_left", "_padding", "_records")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._records = 0
        self._ahead: dict[bytes, bytes] = {}
        self._left = 0
        self._padding = 0
        self._closing = 0
        self._broken: WireError | None = None

    @property
    def whole(self) -> bool:
        """The archive's end was there."""
        return self._closing == len(CLOSING)

    def feed(self, data: bytes) -> list[Entry | bytes]:
        """Entries, each followed by the ``size`` bytes of its content in pieces. Raises ``WireError``, from then on
        always.
        """
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        found: list[Entry | bytes] = []
        try:
            while self._step(found):
                pass
        except WireError as error:
            self._broken = error
            raise
        return found

    def _step(self, found: list[Entry | bytes]) -> bool:
        if self._left:
            piece = bytes(self._buffer[: self._left])
            del self._buffer[: len(piece)]
            self._left -= len(piece)
            if piece:
                found.append(piece)
            return bool(self._buffer) and not self._left
        if self._padding:
            fill = self._buffer[: self._padding]
            del self._buffer[: len(fill)]
            self._padding -= len(fill)
            if any(fill):
                raise WireError("tar: a content's last block is not filled with zeros")
            return not self._padding
        size = self._records or BLOCK
        wanted = size + -size % BLOCK
        if len(self._buffer) < wanted:
            return False
        raw = bytes(self._buffer[:wanted])
        del self._buffer[:wanted]
        if self._records:
            self._records = 0
            if any(raw[size:]):
                raise WireError("tar: the last block of records is not filled with zeros")
            self._ahead = _records(raw[:size])
        else:
            self._take_block(raw, found)
        return True

    def _take_block(self, block: bytes, found: list[Entry | bytes]) -> None:
        if self._closing or not any(block):
            self._closing += BLOCK
            if any(block) or self._closing > len(CLOSING) or self._ahead:
                raise WireError("tar: more bytes after the end of the archive, or an end where an entry was announced")
            return
        if _number(block, 148, 7) != sum(block) - sum(block[148:156]) + 8 * 32 or block[257:265] != b"ustar\00000":
            raise WireError("tar: a header without its checksum or its magic")
        type_ = block[156:157]
        if type_ == b"x":
            size = _number(block, 124, 12)
            if self._ahead or not 0 < size <= RECORDS_MOST:
                raise WireError(f"tar: records of {size} bytes, or twice")
            self._records = size
            return
        entry = _entry(type_, block, self._ahead)
        self._ahead = {}
        self._left = entry.size
        self._padding = -entry.size % BLOCK
        found.append(entry)


def _number(block: bytes, at: int, length: int) -> int:
    match = _OCTAL.fullmatch(block[at : at + length])
    if match is None:
        raise WireError(f"tar: {block[at : at + length]!r} is no octal number")
    return int(block[at : at + length - 1], 8)


def _text(field: bytes) -> bytes:
    text, _, rest = field.partition(b"\0")
    if any(rest):
        raise WireError("tar: a text goes on after its end")
    return text


def _records(raw: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(raw):
        match = _LENGTH.match(raw, at)
        end = at + int(match[1]) if match else 0
        if match is None or end > len(raw) or end <= match.end() or raw[end - 1] != ord("\n") or match[2] in found:
            raise WireError(f"tar: {raw[at : at + 40]!r} is no record")
        found[match[2]] = raw[match.end() : end - 1]
        at = end
    return found


def _entry(type_: bytes, block: bytes, ahead: dict[bytes, bytes]) -> Entry:
    unknown = ahead.keys() - {b"hdrcharset", b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"}
    if unknown or type_ not in TYPES:
        raise WireError(f"tar: an entry of type {type_!r} with the records {sorted(unknown)}")
    path = ahead.get(b"path") or _text(block[:100])
    if type_ == DIRECTORY and b"path" not in ahead:
        path = path.removesuffix(b"/")
    _check_path(path)
    target = ahead.get(b"linkpath") or _text(block[157:257])
    if type_ == HARD_LINK:
        _check_path(target)
    elif bool(target) != (type_ == SYMLINK) or len(target) > PATH_MOST or b"\0" in target:
        raise WireError(f"tar: entry {path[:60]!r} of type {type_!r} with the target {target[:60]!r}")
    size = _decimal(ahead, b"size", _number(block, 124, 12), (1 << 63) - 1)
    if size and type_ != FILE:
        raise WireError(f"tar: entry {path[:60]!r} of type {type_!r} with {size} bytes of content")
    return Entry(
        type=type_,
        path=path,
        mode=_number(block, 100, 8) & 0o7777,
        uid=_decimal(ahead, b"uid", _number(block, 108, 8), 0xFFFF_FFFF),
        gid=_decimal(ahead, b"gid", _number(block, 116, 8), 0xFFFF_FFFF),
        size=size,
        mtime_ns=_mtime(ahead.get(b"mtime"), _number(block, 136, 12)),
        target=target,
    )


def _decimal(ahead: dict[bytes, bytes], key: bytes, otherwise: int, most: int) -> int:
    raw = ahead.get(key)
    if raw is None:
        return otherwise
    if _DECIMAL.fullmatch(raw) is None or int(raw) > most:
        raise WireError(f"tar: {key.decode()} {raw[:40]!r}")
    return int(raw)


def _mtime(raw: bytes | None, seconds: int) -> int:
    if raw is None:
        return seconds * 1_000_000_000
    match = _MTIME.fullmatch(raw)
    if match is None or int(match[2]) > SECONDS_MOST:
        raise WireError(f"tar: mtime {raw[:40]!r}")
    value = int(match[2]) * 1_000_000_000 + int(match[3])
    return -value if match[1] else value


def _check_path(path: bytes) -> None:
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise WireError(f"tar: an entry with the path {path[:60]!r}")
    if len(path) > PATH_MOST or len(parts) > DEPTH_MOST:
        raise WireError(f"tar: a path of {len(path)} bytes and {len(parts)} names")
