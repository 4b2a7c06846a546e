"""A new directory that is filled with what others name, where nothing that they name can reach outside.

The source is hostile: an entry may be called ``../x``, may go through a link that an earlier entry made, may be a hard
link to anything. No path is resolved by the kernel as a whole: each directory is opened below the one before it without
following links, and the last name is made in it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from proofbox.errors import InvalidInput

DEPTH: Final = 256
"""Directories in one path: more is an attack on whoever walks it."""
CHUNK: Final = 1 << 20

Parts = tuple[bytes, ...]
"""The names of a path below the root; none of them is ``..``."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Misplaced(InvalidInput):
    """An entry that has no place in a tree. The message says which and why; nothing of it was made."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the source. ``target`` is a link's target, or for a hard link the path of the first name.

    ``mode`` has the type too. ``mtime``: nanoseconds; compiled Python files name the time of their source, so it has to
    survive.
    """

    path: bytes
    mode: int
    uid: int
    gid: int
    target: bytes = b""
    hard: bool = False
    attributes: Mapping[str, bytes] = field(default_factory=dict)
    mtime: int | None = None


class NewTree:
    """A directory that is being filled. Not for two threads at once. Owners are the caller's, whatever entries say.

    ``top`` is made, with ``mode``; it must not be there. ``left_out`` is told what is not as it was, as (why, path).
    ``strict``: hard links are names of regular files only, since one of a symbolic link would take it to another depth,
    where it leads elsewhere. At the end of a ``with`` block it is finished, unless that fails, and closed.
    """

    def __init__(self, top: Path, *, mode: int, strict: bool, left_out: Callable[[str, bytes], None]) -> None:
        top.mkdir(mode=mode)
        top.chmod(mode)
        self.top = top
        self._strict = strict
        self._left_out = left_out
        self._root = os.open(top, _DIRECTORY)
        self._modes: dict[Parts, Entry] = {}

    def __enter__(self) -> NewTree:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self.close()

    def finish(self) -> None:
        """Sets what directories get last, deepest first: their modes may forbid what was made in them."""
        for parts, entry in sorted(self._modes.items(), key=lambda item: len(item[0]), reverse=True):
            with self._opened(parts) as directory:
                self._dress(directory, entry)

    def close(self) -> None:
        """Lets go of the directory, whatever is in it. Idempotent."""
        if self._root >= 0:
            os.close(self._root)
        self._root = -1

    def put(self, entry: Entry, content: IO[bytes] | None = None) -> None:
        """Makes one entry; a later one replaces an earlier one of its name, as tar does. Raises ``Misplaced`` and
        ``OSError``.
        """
        parts = split(entry.path)
        if not parts:
            if stat.S_ISDIR(entry.mode):
                self._modes[()] = entry
            return
        parts = (*self._reach(parts[:-1]), parts[-1])
        with self._opened(parts[:-1], make=True) as parent:
            if stat.S_ISDIR(entry.mode):
                self._put_directory(parent, parts, entry)
            elif stat.S_ISREG(entry.mode) and not entry.hard:
                self._put_file(parent, parts[-1], entry, content)
            else:
                self._clear(parent, parts[-1], entry)
                self._put_other(parent, parts[-1], entry)

    def create(self, entry: Entry) -> IO[bytes]:
        """Opens the new file ``entry`` to be written; ``complete`` follows, or ``close`` of the file. As ``put``."""
        parts = split(entry.path)
        if not parts:
            raise Misplaced("unpack: the tree itself is no file")
        with self._opened(parts[:-1], make=True) as parent:
            return self._create(parent, parts[-1], entry)

    def complete(self, file: IO[bytes], entry: Entry) -> None:
        """Gives a file that has its content its owner, mode and time, and closes it."""
        with file:
            file.flush()
            self._dress(file.fileno(), entry)

    def _reach(self, parts: Parts) -> Parts:
        """Where that directory is. Its parents are not made yet."""
        return parts

    def _made(self, directory: int, parts: Parts) -> None:
        """A directory was made that no entry has named yet."""
        os.fchmod(directory, 0o755)

    def _has(self, parts: Parts) -> bool:
        try:
            with self._opened(parts[:-1]) as directory:
                os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _opened(self, parts: Parts, *, make: bool = False) -> Iterator[int]:
        """The directory of that path, reached step by step; no step is a link."""
        directory = os.dup(self._root)
        try:
            for depth, name in enumerate(parts, 1):
                try:
                    inner = self._step(directory, name, parts[:depth] if make else None)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    path = os.fsdecode(b"/".join(parts[:depth]))
                    raise Misplaced(
                        f"unpack: {path!r} is no directory, but an entry goes through it; a link there may lead out"
                    ) from error
                os.close(directory)
                directory = inner
            yield directory
        finally:
            os.close(directory)

    def _step(self, directory: int, name: bytes, make: Parts | None) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            if make is None:
                raise
            os.mkdir(name, 0o700, dir_fd=directory)
            inner = os.open(name, _DIRECTORY, dir_fd=directory)
            self._made(inner, make)
            return inner

    def _put_directory(self, parent: int, parts: Parts, entry: Entry) -> None:
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
            raise Misplaced(f"unpack: {os.fsdecode(entry.path)!r} comes twice, first as a directory, then as a file")
        os.unlink(name, dir_fd=parent)

    def _put_other(self, parent: int, name: bytes, entry: Entry) -> None:
        if entry.hard:
            self._hard_link(parent, name, entry)
        elif stat.S_ISLNK(entry.mode):
            os.symlink(entry.target, name, dir_fd=parent)  # its target is text: whoever resolves it does so later
            self._own(parent, name, entry)
            _date(parent, entry, name)
        elif stat.S_ISFIFO(entry.mode):
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._own(parent, name, entry)
            os.chmod(name, stat.S_IMODE(entry.mode), dir_fd=parent)
        else:
            # A device of the host by number is the host's device. /dev inside is made by the runtime anyway.
            self._left_out("devices and sockets left out", entry.path)

    def _hard_link(self, parent: int, name: bytes, entry: Entry) -> None:
        path, target = os.fsdecode(entry.path), os.fsdecode(entry.target)
        source = split(entry.target)
        if source:
            source = (*self._reach(source[:-1]), source[-1])
        try:
            with self._opened(source[:-1]) as directory:
                mode = os.stat(source[-1], dir_fd=directory, follow_symlinks=False).st_mode if source else stat.S_IFDIR
                if stat.S_ISDIR(mode) or (self._strict and not stat.S_ISREG(mode)):
                    raise Misplaced(f"unpack: {path!r} is a hard link to {target!r}, which is no file")
                os.link(source[-1], name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            raise Misplaced(f"unpack: {path!r} is a hard link to {target!r}, which is not in it") from error

    def _put_file(self, parent: int, name: bytes, entry: Entry, content: IO[bytes] | None) -> None:
        with self._create(parent, name, entry) as file:
            if content is not None:
                shutil.copyfileobj(content, file, CHUNK)
            self.complete(file, entry)

    def _create(self, parent: int, name: bytes, entry: Entry) -> IO[bytes]:
        self._clear(parent, name, entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(name, flags, 0o600, dir_fd=parent), "wb")

    def _dress(self, opened: int, entry: Entry) -> None:
        self._own(opened, None, entry)
        self._describe(opened, entry)
        os.fchmod(opened, stat.S_IMODE(entry.mode))
        _date(opened, entry)

    def _describe(self, opened: int, entry: Entry) -> None:
        for name, value in entry.attributes.items():
            try:
                os.setxattr(opened, name, value)
            except OSError:
                self._left_out(f"attributes {name.partition('.')[0]}.* left out", entry.path)

    def _own(self, directory: int, name: bytes | None, entry: Entry) -> None:
        """Gives what was made to whom it belongs: ``name`` in ``directory``, or that itself."""


def _date(directory: int, entry: Entry, name: bytes | None = None) -> None:
    if entry.mtime is None:
        return
    times = (entry.mtime, entry.mtime)
    if name is None:
        os.utime(directory, ns=times)
    else:
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)


def split(path: bytes) -> Parts:
    """The names of a path; a leading ``/`` and ``.`` mean nothing. Raises ``Misplaced`` for ``..``."""
    parts = tuple(part for part in path.split(b"/") if part not in (b"", b"."))
    if b".." in parts or b"\0" in path:
        raise Misplaced(f"unpack: the path {os.fsdecode(path)!r} leaves the tree")
    if len(parts) > DEPTH:
        raise Misplaced(f"unpack: a path of {len(parts)} directories (at most {DEPTH})")
    return parts


def stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a symbolic link at ``path`` of a tree leads to a place in that tree, whatever else the tree holds.

    Only a target that goes up first, not above the tree, and then only down: ``a/..`` is elsewhere if ``a`` is a link.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    return not target.startswith(b"/") and b".." not in parts[ups:] and ups <= path.count(b"/")
