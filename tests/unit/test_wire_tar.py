"""Tar archives on the wire: what one side writes the other reads, and nothing that is read leads out of a tree."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proofbox.wire import tar
from proofbox.wire.frames import WireError
from proofbox.wire.tar import Entry, TarDecoder

NAMES = st.binary(min_size=1, max_size=200).map(lambda raw: raw.replace(b"/", b"-").replace(b"\0", b"0"))
PATHS = st.lists(NAMES.filter(lambda name: name not in (b".", b"..")), min_size=1, max_size=4).map(b"/".join)
ENTRIES = st.builds(
    Entry,
    type=st.sampled_from([tar.FILE, tar.DIRECTORY, tar.FIFO]),
    path=PATHS,
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 2**32 - 1),
    gid=st.integers(0, 2**32 - 1),
    mtime_ns=st.integers(-(2**62), 2**62),
) | st.builds(Entry, type=st.sampled_from([tar.SYMLINK, tar.HARD_LINK]), path=PATHS, target=PATHS)


def archive(items: list[tuple[Entry, bytes]]) -> bytes:
    """All of them, with the end."""
    parts = [tar.header(entry) + content + tar.padding(len(content)) for entry, content in items]
    return b"".join(parts) + tar.CLOSING


def read(raw: bytes, cuts: list[int]) -> tuple[list[tuple[Entry, bytes]], bool]:
    """What a decoder finds in bytes that come in pieces, and whether it was a whole archive."""
    decoder = TarDecoder()
    found: list[tuple[Entry, bytes]] = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        for item in decoder.feed(raw[start:end]):
            if isinstance(item, Entry):
                found.append((item, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + item)
    return found, decoder.whole


@settings(max_examples=60)
@given(st.lists(st.tuples(ENTRIES, st.binary(max_size=1500)), max_size=5), st.data())
def test_an_archive_survives_the_round_trip_however_it_is_cut(
    items: list[tuple[Entry, bytes]], data: st.DataObject
) -> None:
    """Every field of every entry and every byte of its content, names that are no text and odd times included."""
    wanted = [
        (replace(entry, size=len(content)), content) if entry.type == tar.FILE else (entry, b"")
        for entry, content in items
    ]
    raw = archive(wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    assert read(raw, cuts) == (wanted, True)


@settings(max_examples=40)
@given(st.lists(st.tuples(ENTRIES, st.binary(max_size=700)), min_size=1, max_size=4))
def test_others_can_read_what_we_write(items: list[tuple[Entry, bytes]]) -> None:
    """The standard library finds the same names and contents in it."""
    wanted = [(replace(entry, type=tar.FILE, size=len(content), target=b""), content) for entry, content in items]
    with tarfile.open(fileobj=io.BytesIO(archive(wanted)), errors="surrogateescape") as theirs:
        members = theirs.getmembers()
        assert [m.name.encode("utf-8", "surrogateescape") for m in members] == [entry.path for entry, _ in wanted]
        for member, (entry, content) in zip(members, wanted, strict=True):
            file = theirs.extractfile(member)
            assert file is not None
            assert file.read() == content
            assert (member.mode, member.uid, member.gid) == (entry.mode, entry.uid, entry.gid)


@settings(max_examples=150)
@given(st.lists(st.tuples(ENTRIES, st.binary(max_size=300)), max_size=3), st.data())
def test_a_spoiled_archive_gives_entries_or_a_wire_error(items: list[tuple[Entry, bytes]], data: st.DataObject) -> None:
    """Nothing else is raised, and no path that comes out leads out of a tree, whatever was flipped, cut or put in."""
    raw = bytearray(archive([(entry, b"") for entry, _ in items]))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=8)):
        raw[at] = value
    for start in range(0, len(raw), tar.BLOCK):  # a wrong checksum would hide everything else
        block = raw[start : start + tar.BLOCK]
        if block[257:262] == b"ustar" and data.draw(st.booleans()):
            raw[start + 148 : start + 156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
    try:
        found, _ = read(bytes(raw), [len(raw) // 2])
    except WireError:
        return
    for entry, _ in found:
        assert not set(entry.path.split(b"/")) & {b"", b".", b".."}
        assert entry.type != tar.HARD_LINK or not set(entry.target.split(b"/")) & {b"", b".", b".."}


def ustar(name: bytes, kind: bytes = tar.FILE, target: bytes = b"", size: int = 0) -> bytes:
    """A header with a name that ``header`` would not write."""
    return tar._block(kind, name, target, 0o644, 0, 0, size, 0)


def ahead(*records: tuple[bytes, bytes]) -> bytes:
    """Records, and the header that announces them."""
    raw = b"".join(tar._record(key, value) for key, value in records)
    return ustar(b"x", b"x", size=len(raw)) + raw + tar.padding(len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        ustar(b"/etc/passwd"),
        ustar(b"../up"),
        ustar(b"a/../../up"),
        ustar(b"./a"),
        ustar(b"a//b"),
        ustar(b"a/"),
        ustar(b""),
        ustar(b"a", tar.HARD_LINK, b"/etc/shadow"),
        ustar(b"a", tar.HARD_LINK, b"../shadow"),
        ustar(b"a", tar.HARD_LINK),
        ustar(b"a", tar.SYMLINK),
        ustar(b"a", tar.FILE, b"target"),
        ustar(b"a", tar.DIRECTORY, size=10),
        ustar(b"a", b"S"),
        ustar(b"a", b"L", size=10),
        ahead((b"path", b"/abs")) + ustar(b"a"),
        ahead((b"path", b"a\0b")) + ustar(b"a"),
        ahead((b"path", b"x/" * 300 + b"x")) + ustar(b"a"),
        ahead((b"path", b"x" * 5000)) + ustar(b"a"),
        ahead((b"linkpath", b"../../x")) + ustar(b"a", tar.HARD_LINK, b"b"),
        ahead((b"size", b"-1")) + ustar(b"a"),
        ahead((b"size", b"9" * 19)) + ustar(b"a"),
        ahead((b"mtime", b"1e400")) + ustar(b"a"),
        ahead((b"SCHILYxattr", b"v")) + ustar(b"a"),
        ahead((b"path", b"a")) + ahead((b"path", b"b")) + ustar(b"c"),
        ahead((b"path", b"a")) + tar.CLOSING,
        ustar(b"x", b"x", size=1 << 20),
        ustar(b"x", b"x", size=3) + b"3 =".ljust(512, b"\0"),
        ustar(b"a")[:-1] + b"\1",
        tar.CLOSING + bytes(512),
        bytes(512) + ustar(b"a"),
        b"\1" * 512,
        ustar(b"a", size=1) + b"a" + b"b" * 511,
    ],
    ids=range(33),
)
def test_what_our_guest_never_writes_is_refused(raw: bytes) -> None:
    """Paths that leave the tree, unknown kinds and records, and bytes where there should be none; the decoder stays
    broken.
    """
    decoder = TarDecoder()
    with pytest.raises(WireError):
        decoder.feed(raw)
    with pytest.raises(WireError):
        decoder.feed(b"")


def test_a_cut_archive_is_not_whole() -> None:
    """Wherever it is cut, nobody takes it for all that there was."""
    raw = archive([(Entry(type=tar.FILE, path=b"a", size=600), b"x" * 600)])
    for length in (0, 511, 512, 800, 1536, 2048, len(raw) - 1):
        assert not read(raw[:length], [])[1]
    assert read(raw, [])[1]


@pytest.mark.parametrize("path", [b"", b"/a", b"..", b"a/../b", b"a/", b"a\0", b"x/" * 256 + b"x"])
def test_no_such_path_is_written(path: bytes) -> None:
    """The encoder holds the rules of the decoder."""
    with pytest.raises(WireError):
        tar.header(Entry(type=tar.FILE, path=path))
