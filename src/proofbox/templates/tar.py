"""Tar archives: a whole root file system, or a layer of an image with its marks for what it removes."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, cast

from proofbox.errors import InvalidInput
from proofbox.kit.newtree import CHUNK, Entry, split
from proofbox.templates.below import Below
from proofbox.templates.room import Room
from proofbox.templates.tree import CAPABILITY
from proofbox.templates.unpack import NewTree, Notes

ZSTD: Final = b"\x28\xb5\x2f\xfd"
GZIP: Final = b"\x1f\x8b"

REMOVED: Final = b".wh."
"""In front of the name of what a layer removes (image-spec, layer.md)."""
OPAQUE: Final = b".wh..wh..opq"
RESERVED: Final = b".wh..wh."
"""What else the file system that had these marks first kept for itself."""

HEADER_MOST: Final = 1 << 20
"""Bytes of one extended header; the kernel takes 64 KiB of attributes and 4 KiB of path."""
GLOBAL_MOST: Final = 100

_EXTENDED: Final = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_ABSURD: Final = (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP)
"""What the kernel says of names and links that nobody can have, and not of a full or broken disk."""
_TIME_MOST: Final = 1 << 33

_XATTR: Final = "SCHILY.xattr."
_TYPES: Final = {
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}


def unpack_tar(source: Path, top: Path) -> Notes:
    """Unpacks a tar into the new directory ``top``. Raises ``InvalidInput``, ``OSError``; remove ``top`` then."""
    notes = Notes()
    room = Room.whole(f"import of {source}")
    with reported(str(source)), _opened_tar(source) as archive, NewTree(top, notes, room=room) as layer:
        for member in archive:
            _put_member(layer, archive, member)
        if not os.listdir(top):
            # An image of a disk begins with zeros, as the end of an archive does.
            raise InvalidInput(f"import of {source}: there is nothing in it, if it is a tar archive at all")
    return notes


def unpack_layer(blob: IO[bytes], what: str, diff_id: str, top: Path, below: Below, room: Room) -> Notes:
    """Unpacks a layer of an image, packed or not, into the new directory ``top``, for lying on ``below``.

    ``diff_id`` is the digest that the unpacked archive has to have, ``room`` what the image may still take. Raises
    ``InvalidInput``, ``OSError``; remove ``top`` then.
    """
    notes = Notes()
    room.what = f"import of {what}"
    # Headers and padding fill no disk, but take for ever.
    read = Room(room.most_bytes, room.most_files, room.what)
    with reported(what), unpacked(blob) as content:
        hashed = _Hashed(read.counted(content))
        stream = cast(IO[bytes], hashed)
        with (
            tarfile.open(fileobj=stream, mode="r|", errors="surrogateescape", tarinfo=_Member) as archive,
            NewTree(top, notes, below, room) as layer,
        ):
            while (member := archive.next()) is not None:
                _put_of_layer(layer, archive, member)
                archive.members.clear()  # type: ignore[attr-defined] # it would keep all, for a search that nobody makes
        while hashed.read(CHUNK):
            pass  # padding counts too
        if hashed.digest != diff_id:
            raise InvalidInput(f"import of {what}: its content has the digest {hashed.digest}, not {diff_id}")
    return notes


@contextmanager
def reported(what: str) -> Iterator[None]:
    """What the libraries and the kernel raise for an archive that is broken or absurd becomes ``InvalidInput``."""
    try:
        yield
    except InvalidInput:
        raise
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError) as error:
        why = str(error)
        if why.startswith("file could not be opened"):  # and then, on several lines, why by each way of packing
            why = "it is neither a tar nor one that was packed with gzip, bzip2, xz or zstd"
        raise InvalidInput(f"import of {what}: not a whole tar archive: {why}") from error
    except RecursionError as error:
        raise InvalidInput(f"import of {what}: its headers are about headers about headers, too many times") from error
    except OSError as error:
        if error.errno not in _ABSURD:
            raise
        raise InvalidInput(f"import of {what}: {error.strerror}") from error


class _Member(tarfile.TarInfo):
    """An entry whose extended headers have a limit: they are read into memory whole."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and self.size > HEADER_MOST:
            raise tarfile.ReadError(f"a header of {self.size} bytes (at most {HEADER_MOST})")
        if len(archive.pax_headers) > GLOBAL_MOST:
            raise tarfile.ReadError(f"more than {GLOBAL_MOST} global headers")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return] # no public method is asked before


@contextmanager
def unpacked(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """What a file holds that is packed with gzip or zstd, or not at all; told by its first bytes."""
    start = file.read(4)
    file.seek(0)
    if start == ZSTD:
        with _unpacking(file) as stream:
            yield stream
    elif start.startswith(GZIP):
        with gzip.GzipFile(fileobj=file, mode="rb") as packed:
            yield packed  # type: ignore[misc] # it reads bytes, which is all that is asked of it
    else:
        yield file


class _Hashed:
    """A stream, and the digest of what was read of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._sum.update(data)
        return data

    @property
    def digest(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


def _put_of_layer(layer: NewTree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    directory, _, name = os.fsencode(member.name).rstrip(b"/").rpartition(b"/")
    if name == OPAQUE:
        layer.hide(directory)
    elif name.startswith(RESERVED):
        layer.notes.add("reserved entries left out", os.fsencode(member.name))
    elif name.startswith(REMOVED):
        removed = name.removeprefix(REMOVED)
        if removed in (b"", b".", b".."):
            raise InvalidInput(f"import: {member.name!r} removes what has no name")
        layer.remove(directory + b"/" + removed)
    else:
        _put_member(layer, archive, member)


def is_tar(source: Path) -> bool:
    """Whether a file begins as an archive that can be unpacked, with something in it: zeros alone, as images of disks
    begin with, are one without. Raises ``OSError`` if it cannot be read.
    """
    try:
        with reported(str(source)), _opened_tar(source) as archive:
            return archive.next() is not None
    except InvalidInput:
        return False


def tar_entries(source: Path, prefix: bytes) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    """What a tar holds, one entry after the other, for being put below ``prefix``. Raises as ``unpack_tar``."""
    with reported(str(source)), _opened_tar(source) as archive:
        for member in archive:
            entry = _entry(member)
            if not split(entry.path):
                continue  # the directory that it is unpacked in stays as it is
            hard = b"%s/%s" % (prefix, entry.target) if entry.hard else entry.target
            inner = replace(entry, path=b"%s/%s" % (prefix, entry.path), target=hard)
            yield inner, archive.extractfile(member) if member.isreg() else None


def _put_member(layer: NewTree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    layer.put(_entry(member), archive.extractfile(member) if member.isreg() else None)


def _entry(member: tarfile.TarInfo) -> Entry:
    hard = member.islnk()
    kind = stat.S_IFREG if hard or member.isreg() else _TYPES.get(member.type, 0)
    if not kind:
        raise InvalidInput(f"import: {member.name!r} has the unknown tar type {member.type!r}")
    if member.issym() and not member.linkname:
        raise InvalidInput(f"import: {member.name!r} is a link to nothing")
    return Entry(
        os.fsencode(member.name),
        kind | member.mode & 0o7777,
        member.uid,
        member.gid,
        os.fsencode(member.linkname) if hard or member.issym() else b"",
        hard,
        _attributes(member),
        int(max(0, min(member.mtime, _TIME_MOST)) * 1_000_000_000),
    )


def _attributes(member: tarfile.TarInfo) -> dict[str, bytes]:
    found = {}
    for key, value in member.pax_headers.items():
        name = key.removeprefix(_XATTR)
        if key.startswith(_XATTR) and (name.startswith("user.") or name == CAPABILITY):
            found[name] = value.encode("utf-8", "surrogateescape")
    return found


@contextmanager
def _opened_tar(source: Path) -> Iterator[tarfile.TarFile]:
    with open(source, "rb") as file:
        zstd = file.read(4) == ZSTD
        file.seek(0)
        if not zstd:
            with tarfile.open(fileobj=file, mode="r:*", errors="surrogateescape", tarinfo=_Member) as archive:
                yield archive
            return
        with (
            _unpacking(file) as stream,
            tarfile.open(fileobj=stream, mode="r|", errors="surrogateescape", tarinfo=_Member) as archive,
        ):
            yield archive


@contextmanager
def _unpacking(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The output of zstd. One that fails gives less than there is, and so a cut archive or another digest."""
    os.lseek(file.fileno(), 0, os.SEEK_SET)  # what was looked at came through a buffer that zstd does not have
    try:
        process = subprocess.Popen(["zstd", "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise InvalidInput("import: a zstd archive needs the program zstd (apt install zstd)") from error
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout
        finally:
            process.kill()
