"""The messages of the guest protocol (docs/protocol.md) as frozen values, each with its two directions.

The host encodes ``HostHello``, ``Run``, ``Connect`` and decodes what the guest answers; the ``fake`` runtime does the
inverse. ``X_LAYOUT.encode(value)`` gives a payload, ``X_LAYOUT.decode(payload)`` a value or a ``WireError``. "text" is
bytes without NUL.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from proofbox.model.text import one_line
from proofbox.wire.frames import FIRST_CREDIT, MAX_CREDIT, WireError
from proofbox.wire.layout import Field, Layout

VERSION: Final = 1

ARGV: Final = 0
SHELL: Final = 1
FILE: Final = 2

READ, WRITE, STAT, LIST_DIR, MKDIR, REMOVE, RENAME, READLINK, SYMLINK, CHANGE, READ_TREE, WRITE_TREE = range(1, 13)
PARENTS, RECURSIVE, APPEND, NOFOLLOW, EXCLUSIVE, OWNERS = 1, 2, 4, 8, 16, 32
TREES: Final = (READ_TREE, WRITE_TREE)
"""Those that tell on pipe 2 which path it was that failed: at most ``PATH_MOST`` bytes."""
PATH_MOST: Final = 4096

EXITED, SIGNALED, DEADLINE, OUTPUT_LIMIT, KILLED, SUPERVISOR_LOST = range(6)

SCOPE_PROCESS, SCOPE_GROUP, SCOPE_TREE = 0, 1, 2

RUNNING, ENDED = 0, 1


class HostHello(msgspec.Struct, frozen=True, kw_only=True):
    """The host's first message. ``life_ms`` 0 is for ever."""

    version: int = VERSION
    life_ms: int = 0
    unisolated: bool = False
    fingerprint: bool = False
    """The answer has the cheap fingerprint of the sandbox."""
    ahead: bool = False
    """The sandbox is to wait: what its first command needs may be made before it comes."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Start a command or a file operation. None and the defaults are those of docs/protocol.md."""

    kind: int
    args: tuple[bytes, ...] = ()
    env: tuple[bytes, ...] = ()
    cwd: bytes | None = None
    user: bytes | None = None
    stdin: bool = False
    pty: tuple[int, int] | None = None
    deadline_ms: int = 0
    grace_ms: int = 0
    keep: int | None = None
    window: int = FIRST_CREDIT
    channel: bool = False
    drain_ms: int = 100
    output_limit: int = 0
    rlimits: tuple[tuple[int, int, int], ...] = ()
    shell: bytes | None = None
    merge: bool = False
    quiet: bool = False
    file_op: int | None = None
    path: bytes | None = None
    path2: bytes | None = None
    mode: int | None = None
    owner: bytes | None = None
    offset: int = 0
    limit: int | None = None
    flags: int = 0
    size: int | None = None


class Connect(msgspec.Struct, frozen=True, kw_only=True):
    """Open a connection to a server inside: one of ``unix`` and ``tcp``."""

    unix: bytes | None = None
    tcp: int | None = None
    window: int = FIRST_CREDIT


class GuestHello(msgspec.Struct, frozen=True, kw_only=True):
    """The guest's answer to ``HostHello``."""

    version: int = VERSION
    pid: int
    machine: bytes = b""
    fingerprint: bytes = b""
    """Lines, see ``proofbox.wire.fingerprint``; empty if none was asked for."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """``pid`` as seen in the sandbox; 0 for a connection."""

    pid: int = 0


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A stream has ended. ``left`` None: not known; ``cpu_us`` is (user, system); ``produced`` is of pipes 1, 2, 3."""

    how: int
    code: int
    elapsed_us: int = 0
    cpu_us: tuple[int, int] = (0, 0)
    max_rss: int = 0
    produced: tuple[int, int, int] = (0, 0, 0)
    held: int = 0
    left: int | None = 0
    gone: bool = False
    errno: int = 0
    result: bytes = b""

    def held_pipe(self, pipe: int) -> bool:
        """Pipe 1, 2 or 3 was still open when the drain window closed."""
        return bool(self.held >> pipe & 1)


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The operation did not start and changed nothing."""

    step: bytes
    errno: int = 0
    message: bytes = b""


class Fatal(msgspec.Struct, frozen=True, kw_only=True):
    """What the guest could not go on from; it exits after it."""

    message: bytes


class KillAllReply(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes there were, and whether a scan after the kill found none."""

    killed: int
    gone: bool


class StreamState(msgspec.Struct, frozen=True):
    """One stream that the guest knows: ``state`` is ``RUNNING`` or ``ENDED``."""

    stream: int
    state: int
    pid: int


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that the guest knows, as (stream, state, pid)."""

    streams: tuple[tuple[int, int, int], ...] = ()

    def states(self) -> tuple[StreamState, ...]:
        """The same with names."""
        return tuple(StreamState(*entry) for entry in self.streams)


class StatRecord(msgspec.Struct, frozen=True):
    """What a file operation tells about a path. ``mode`` has type and permission bits; ``mtime_ns`` since the epoch."""

    mode: int
    uid: int
    gid: int
    links: int
    size: int
    inode: int
    mtime_ns: int


class ListEntry(msgspec.Struct, frozen=True):
    """One entry of a listed directory; ``name`` is relative to it, never absolute and without ``.`` and ``..``."""

    name: bytes
    stat: StatRecord


HOST_HELLO_LAYOUT: Final = Layout(
    HostHello,
    Field(1, "version", "I", required=True),
    Field(2, "life_ms", "Q"),
    Field(3, "unisolated", "bool"),
    Field(4, "fingerprint", "bool"),
    Field(5, "ahead", "bool"),
)
RUN_LAYOUT: Final = Layout(
    Run,
    Field(1, "kind", "B", required=True),
    Field(2, "args", "text", repeats=True),
    Field(3, "env", "text", repeats=True),
    Field(4, "cwd", "text"),
    Field(5, "user", "text"),
    Field(6, "stdin", "bool"),
    Field(7, "pty", "HH"),
    Field(8, "deadline_ms", "Q"),
    Field(9, "grace_ms", "I"),
    Field(10, "keep", "Q"),
    Field(11, "window", "I"),
    Field(12, "channel", "bool"),
    Field(13, "drain_ms", "I"),
    Field(14, "output_limit", "Q"),
    Field(15, "rlimits", "IQQ", repeats=True),
    Field(16, "shell", "text"),
    Field(17, "merge", "bool"),
    Field(18, "quiet", "bool"),
    Field(20, "file_op", "B"),
    Field(21, "path", "text"),
    Field(22, "path2", "text"),
    Field(23, "mode", "I"),
    Field(24, "owner", "text"),
    Field(25, "offset", "Q"),
    Field(26, "limit", "Q"),
    Field(27, "flags", "B"),
    Field(28, "size", "Q"),
)
CONNECT_LAYOUT: Final = Layout(Connect, Field(1, "unix", "text"), Field(2, "tcp", "H"), Field(3, "window", "I"))
GUEST_HELLO_LAYOUT: Final = Layout(
    GuestHello,
    Field(1, "version", "I", required=True),
    Field(2, "pid", "I", required=True),
    Field(3, "machine", "text"),
    Field(4, "fingerprint", "bytes"),
)
STARTED_LAYOUT: Final = Layout(Started, Field(1, "pid", "I"))
_END_FIELDS: Final = Layout(
    End,
    Field(1, "how", "B", required=True),
    Field(2, "code", "i", required=True),
    Field(3, "elapsed_us", "Q"),
    Field(4, "cpu_us", "QQ"),
    Field(5, "max_rss", "Q"),
    Field(6, "produced", "QQQ"),
    Field(7, "held", "B"),
    Field(8, "left", "I"),
    Field(9, "gone", "bool"),
    Field(10, "errno", "i"),
    Field(11, "result", "bytes"),
)
REFUSED_LAYOUT: Final = Layout(
    Refused, Field(1, "step", "text", required=True), Field(2, "errno", "i"), Field(3, "message", "text")
)
FATAL_LAYOUT: Final = Layout(Fatal, Field(1, "message", "text", required=True))
FATAL_MOST: Final = 400
"""Bytes of a guest's last words that are kept; ours says no more (guest/frame.c)."""
KILL_ALL_LAYOUT: Final = Layout(
    KillAllReply, Field(1, "killed", "I", required=True), Field(2, "gone", "bool", required=True)
)
LIST_LAYOUT: Final = Layout(ListReply, Field(3, "streams", "IBI", repeats=True))

LEFT_UNKNOWN: Final = 0xFFFF_FFFF


def fatal_words(payload: bytes) -> str:
    """A guest's last words, cut, as they may be shown to people. Raises ``WireError``."""
    return one_line(FATAL_LAYOUT.decode(payload).message[:FATAL_MOST].decode("utf-8", "backslashreplace"))


class _EndLayout:
    """``END`` with its ranges checked, and ``left`` 0xffffffff as None."""

    @staticmethod
    def encode(value: End) -> bytes:
        """The payload."""
        return _END_FIELDS.encode(msgspec.structs.replace(value, left=LEFT_UNKNOWN) if value.left is None else value)

    @staticmethod
    def decode(payload: bytes) -> End:
        """The value, or ``WireError``."""
        end = _END_FIELDS.decode(payload)
        if end.how > SUPERVISOR_LOST:
            raise WireError(f"END with how {end.how}; 0 to {SUPERVISOR_LOST} are known")
        if end.held & ~0x0E:
            raise WireError(f"END with held {end.held:#04x}; bits 1 to 3 are known")
        if not 0 <= end.code <= 255:
            raise WireError(f"END with code {end.code}")
        if end.errno < 0:
            raise WireError(f"END with errno {end.errno}")
        return msgspec.structs.replace(end, left=None) if end.left == LEFT_UNKNOWN else end


END_LAYOUT: Final = _EndLayout()

_STAT: Final = struct.Struct("<IIIIQQqQ")
_NAME_LENGTH: Final = struct.Struct("<H")
STAT_SIZE: Final = _STAT.size
_COUNTS: Final = struct.Struct("<QQQ")
_U32: Final = struct.Struct("<I")


def encode_stat(stat: StatRecord) -> bytes:
    """48 bytes."""
    return _STAT.pack(stat.mode, stat.uid, stat.gid, stat.links, stat.size, stat.inode, stat.mtime_ns, 0)


def decode_stat(raw: bytes) -> StatRecord:
    """A stat record from exactly 48 bytes."""
    if len(raw) != STAT_SIZE:
        raise WireError(f"stat record of {len(raw)} bytes, not {STAT_SIZE}")
    *values, reserved = _STAT.unpack(raw)
    if reserved:
        raise WireError(f"stat record with {reserved} in its reserved field")
    return StatRecord(*values)


class TreeCounts(msgspec.Struct, frozen=True):
    """What a tree operation has moved: entries, bytes of content; and how many it has left out."""

    entries: int
    size: int
    left_out: int


def encode_tree_counts(counts: TreeCounts) -> bytes:
    """24 bytes."""
    return _COUNTS.pack(counts.entries, counts.size, counts.left_out)


def decode_tree_counts(raw: bytes) -> TreeCounts:
    """The result of a tree operation."""
    if len(raw) != _COUNTS.size:
        raise WireError(f"result of a tree operation with {len(raw)} bytes, not {_COUNTS.size}")
    return TreeCounts(*_COUNTS.unpack(raw))


def encode_entry(entry: ListEntry) -> bytes:
    """One entry of a ``list`` as it travels on pipe 1."""
    return encode_stat(entry.stat) + _NAME_LENGTH.pack(len(entry.name)) + entry.name


def decode_entries(raw: bytes) -> Iterator[ListEntry]:
    """The entries of a whole ``list``.

    A name that would leave the directory is a violation: the host may use it as a path.
    """
    at = 0
    while at < len(raw):
        start = at + STAT_SIZE + _NAME_LENGTH.size
        if start > len(raw):
            raise WireError("list entry cut off in its stat record")
        stat = decode_stat(raw[at : at + STAT_SIZE])
        (length,) = _NAME_LENGTH.unpack_from(raw, at + STAT_SIZE)
        at = start + length
        if at > len(raw):
            raise WireError("list entry cut off in its name")
        name = raw[start:at]
        if b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/")):
            raise WireError(f"list entry with the name {name[:60]!r}")
        yield ListEntry(name, stat)


def encode_credit(amount: int) -> bytes:
    """The payload of ``CREDIT``."""
    return _U32.pack(amount)


def decode_credit(payload: bytes) -> int:
    """The bytes of a ``CREDIT``. Whether the sum stays at or below 2^31 is for the holder of the sum."""
    amount: int = _U32.unpack(payload)[0] if len(payload) == 4 else -1
    if not 0 <= amount <= MAX_CREDIT:
        raise WireError(f"credit payload {payload[:8]!r}")
    return amount


def encode_signal(signal: int, scope: int) -> bytes:
    """The payload of ``SIGNAL``."""
    return struct.pack("<iB", signal, scope)


def decode_signal(payload: bytes) -> tuple[int, int]:
    """(signal, scope)."""
    if len(payload) != 5 or payload[4] > SCOPE_TREE:
        raise WireError(f"signal payload {payload[:8]!r}")
    signal: int = struct.unpack_from("<i", payload)[0]
    return signal, payload[4]


def encode_resize(rows: int, columns: int) -> bytes:
    """The payload of ``RESIZE``."""
    return struct.pack("<HH", rows, columns)


def decode_resize(payload: bytes) -> tuple[int, int]:
    """(rows, columns)."""
    if len(payload) != 4:
        raise WireError(f"resize payload of {len(payload)} bytes, not 4")
    rows, columns = struct.unpack("<HH", payload)
    return rows, columns
