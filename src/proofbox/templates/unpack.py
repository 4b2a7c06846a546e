"""A root file system from a directory or a tar into a new directory, where nothing that it holds can reach outside.

The source is hostile: a member may be called ``../x``, may go through a link that an earlier member made, may be a hard
link to anything. No path is resolved by the kernel as a whole: each directory is opened below the one before it without
following links, and the last name is made in it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from proofbox.errors import InvalidInput
from proofbox.templates.tree import CAPABILITY, CHUNK, walk

DEPTH = 256
"""Directories in one path: more is an attack on whoever walks it."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Notes:
    """What is not as it was in the source, and why; counted, with the first few named."""

    kept: dict[str, list[str]] = field(default_factory=dict)

    def add(self, why: str, path: bytes) -> None:
        """One more path that this happened to."""
        self.kept.setdefault(why, []).append(os.fsdecode(path))

    def facts(self) -> dict[str, str]:
        """For the record of the template."""
        shown = {why: ", ".join(paths[:5]).encode("utf-8", "replace").decode() for why, paths in self.kept.items()}
        return {why: f"{len(self.kept[why])}: {names}" for why, names in shown.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the source. ``target`` is a link's target, or for a hard link the path of the first name."""

    path: bytes
    mode: int
    uid: int
    gid: int
    target: bytes = b""
    hard: bool = False
    capability: bytes = b""


class Layer:
    """A directory that is being filled. Not for two threads."""

    def __init__(self, top: Path, notes: Notes) -> None:
        top.mkdir(mode=0o755)
        top.chmod(0o755)
        self.top = top
        self.notes = notes
        self._root = os.open(top, _DIRECTORY)
        self._modes: dict[tuple[bytes, ...], Entry] = {}

    def close(self) -> None:
        """Sets what directories get last, deepest first (their modes may forbid what was made in them), and closes."""
        try:
            for parts, entry in sorted(self._modes.items(), key=lambda item: len(item[0]), reverse=True):
                with self._opened(parts) as directory:
                    self._own(directory, None, entry)
                    os.fchmod(directory, stat.S_IMODE(entry.mode))
        finally:
            os.close(self._root)

    def put(self, entry: Entry, content: IO[bytes] | None = None) -> None:
        """Makes one entry; a later one replaces an earlier one of its name, as tar does. Raises ``InvalidInput``."""
        parts = split(entry.path)
        if not parts:
            if stat.S_ISDIR(entry.mode):
                self._modes[()] = entry
            return
        with self._opened(parts[:-1], make=True) as parent:
            if stat.S_ISDIR(entry.mode):
                self._put_directory(parent, parts, entry)
            else:
                self._clear(parent, parts[-1], entry)
                self._put_other(parent, parts[-1], entry, content)

    @contextmanager
    def _opened(self, parts: tuple[bytes, ...], *, make: bool = False) -> Iterator[int]:
        """The directory of that path, reached step by step; no step is a link."""
        directory = os.dup(self._root)
        try:
            for depth, name in enumerate(parts, 1):
                try:
                    inner = self._step(directory, name, make)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    path = os.fsdecode(b"/".join(parts[:depth]))
                    raise InvalidInput(
                        f"import: {path!r} is no directory, but an entry goes through it; a link there may lead out"
                    ) from error
                os.close(directory)
                directory = inner
            yield directory
        finally:
            os.close(directory)

    @staticmethod
    def _step(directory: int, name: bytes, make: bool) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, 0o755, dir_fd=directory)
            inner = os.open(name, _DIRECTORY, dir_fd=directory)
            os.fchmod(inner, 0o755)
            return inner

    def _put_directory(self, parent: int, parts: tuple[bytes, ...], entry: Entry) -> None:
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(parts[-1], dir_fd=parent)
                os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._modes[parts] = entry

    def _clear(self, parent: int, name: bytes, entry: Entry) -> None:
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(found.st_mode):
            raise InvalidInput(f"import: {os.fsdecode(entry.path)!r} comes twice, first as a directory, then as a file")
        os.unlink(name, dir_fd=parent)

    def _put_other(self, parent: int, name: bytes, entry: Entry, content: IO[bytes] | None) -> None:
        if entry.hard:
            self._hard_link(parent, name, entry)
        elif stat.S_ISLNK(entry.mode):
            os.symlink(entry.target, name, dir_fd=parent)  # its target is text: it is resolved inside, later
            self._own(parent, name, entry)
        elif stat.S_ISREG(entry.mode):
            self._put_file(parent, name, entry, content)
        elif stat.S_ISFIFO(entry.mode):
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._own(parent, name, entry)
            os.chmod(name, stat.S_IMODE(entry.mode), dir_fd=parent)
        else:
            # A device of the host by number is the host's device. /dev inside is made by the runtime anyway.
            self.notes.add("devices and sockets left out", entry.path)

    def _hard_link(self, parent: int, name: bytes, entry: Entry) -> None:
        source = split(entry.target)
        try:
            with self._opened(source[:-1]) as directory:
                if not source or stat.S_ISDIR(os.stat(source[-1], dir_fd=directory, follow_symlinks=False).st_mode):
                    raise InvalidInput(f"import: {os.fsdecode(entry.path)!r} is a hard link to a directory")
                os.link(source[-1], name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            raise InvalidInput(
                f"import: {os.fsdecode(entry.path)!r} is a hard link to {os.fsdecode(entry.target)!r}, "
                "which is not in it"
            ) from error

    def _put_file(self, parent: int, name: bytes, entry: Entry, content: IO[bytes] | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=parent), "wb", buffering=0) as file:
            if content is not None:
                shutil.copyfileobj(content, file, CHUNK)
            self._own(file.fileno(), None, entry)
            mode = stat.S_IMODE(entry.mode)
            os.fchmod(file.fileno(), mode)
            if entry.capability:
                try:
                    os.setxattr(file.fileno(), CAPABILITY, entry.capability)
                except OSError:
                    self.notes.add("file capabilities left out", entry.path)

    @staticmethod
    def _own(directory: int, name: bytes | None, entry: Entry) -> None:
        if os.geteuid() != 0:
            return
        if name is None:
            os.fchown(directory, entry.uid, entry.gid)
        else:
            os.chown(name, entry.uid, entry.gid, dir_fd=directory, follow_symlinks=False)


def split(path: bytes) -> tuple[bytes, ...]:
    """The names of a path; a leading ``/`` and ``.`` mean nothing. Raises ``InvalidInput`` for ``..``."""
    parts = tuple(part for part in path.split(b"/") if part not in (b"", b"."))
    if b".." in parts or b"\0" in path:
        raise InvalidInput(f"import: the path {os.fsdecode(path)!r} leaves the tree")
    if len(parts) > DEPTH:
        raise InvalidInput(f"import: a path of {len(parts)} directories (at most {DEPTH})")
    return parts


def copy_directory(source: Path, top: Path) -> Notes:
    """Copies the tree ``source`` into the new directory ``top``. ``InvalidInput``, ``OSError``: remove ``top`` then."""
    notes = Notes()
    base = os.fsencode(source)
    names: dict[tuple[int, int], bytes] = {}
    with closing(Layer(top, notes)) as layer:
        for path, found in walk(base):
            full = os.path.join(base, path) if path else base
            first = names.setdefault((found.st_dev, found.st_ino), path)
            hard = stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and first != path
            target = first if hard else os.readlink(full) if stat.S_ISLNK(found.st_mode) else b""
            entry = Entry(path, found.st_mode, found.st_uid, found.st_gid, target, hard, _capability(full))
            if stat.S_ISREG(found.st_mode) and not hard:
                with open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
                    layer.put(entry, file)
            else:
                layer.put(entry)
    return notes


def _capability(path: bytes) -> bytes:
    try:
        return os.getxattr(path, CAPABILITY, follow_symlinks=False)
    except OSError:
        return b""


def unpack_tar(source: Path, top: Path) -> Notes:
    """Unpacks a tar into the new directory ``top``. Raises ``InvalidInput``, ``OSError``; remove ``top`` then."""
    notes = Notes()
    try:
        with _opened_tar(source) as archive, closing(Layer(top, notes)) as layer:
            for member in archive:
                _put_member(layer, archive, member)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidInput(f"import of {source}: not a whole tar archive: {error}") from error
    return notes


_TYPES = {
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}


def _put_member(layer: Layer, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    hard = member.islnk()
    kind = stat.S_IFREG if hard or member.isreg() else _TYPES.get(member.type, 0)
    if not kind:
        raise InvalidInput(f"import: {member.name!r} has the unknown tar type {member.type!r}")
    path, target = os.fsencode(member.name), os.fsencode(member.linkname) if hard or member.issym() else b""
    text = member.pax_headers.get(f"SCHILY.xattr.{CAPABILITY}", "")
    capability = text.encode("utf-8", "surrogateescape")
    entry = Entry(path, kind | member.mode & 0o7777, member.uid, member.gid, target, hard, capability)
    content = archive.extractfile(member) if member.isreg() else None
    layer.put(entry, content)


@contextmanager
def _opened_tar(source: Path) -> Iterator[tarfile.TarFile]:
    with open(source, "rb") as file:
        zstd = file.read(4) == b"\x28\xb5\x2f\xfd"
        file.seek(0)
        if not zstd:
            with tarfile.open(fileobj=file, mode="r:*", errors="surrogateescape") as archive:
                yield archive
            return
        try:
            unpacking = subprocess.Popen(["zstd", "-dcq"], stdin=file, stdout=subprocess.PIPE)
        except FileNotFoundError as error:
            raise InvalidInput(
                f"import of {source}: a zstd archive needs the program zstd (apt install zstd)"
            ) from error
    with unpacking:
        try:
            with tarfile.open(fileobj=unpacking.stdout, mode="r|", errors="surrogateescape") as archive:
                yield archive
        finally:
            unpacking.kill()
