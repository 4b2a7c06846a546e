"""A root file system or a layer into a new directory, where nothing that it holds can reach outside.

The source is hostile: a member may be called ``../x``, may go through a link that an earlier member made, may be a hard
link to anything. No path is resolved by the kernel as a whole: each directory is opened below the one before it without
following links, and the last name is made in it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from proofbox.errors import InvalidInput
from proofbox.templates.below import Below, Parts
from proofbox.templates.tree import CHUNK, OPAQUE, OVERLAY, attributes, walk

DEPTH = 256
"""Directories in one path: more is an attack on whoever walks it."""

LINKS: Final = 40
"""Links that one path may go through below, as in the kernel."""

IDS: Final = 65_536
NOBODY: Final = 65_534
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
    """One entry of the source. ``target`` is a link's target, or for a hard link the path of the first name.

    ``mtime``: nanoseconds; compiled Python files name the time of their source, so it has to survive.
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
    """A directory that is being filled. ``below``: the layers that it will lie on. Not for two threads.

    A path whose directories are not in this layer goes on as in those below: with the same owner and mode, and through
    a link to where it leads, inside.
    """

    def __init__(self, top: Path, notes: Notes, below: Below | None = None) -> None:
        top.mkdir(mode=0o755)
        top.chmod(0o755)
        self.top = top
        self.notes = notes
        self._below = below or Below(())
        self._root = os.open(top, _DIRECTORY)
        self._modes: dict[Parts, Entry] = {}
        self._removed: dict[Parts, None] = {}
        self._opaque: dict[Parts, None] = {}
        self._reached: dict[Parts, Parts] = {(): ()}
        if root := self._below.find(()):
            self._modes[()] = Entry(b"", root.found.st_mode, root.found.st_uid, root.found.st_gid)

    def __enter__(self) -> NewTree:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Sets what is set last, deepest first: modes may forbid what was made before."""
        try:
            if error is None:
                self._mark()
                for parts, entry in sorted(self._modes.items(), key=lambda item: len(item[0]), reverse=True):
                    with self._opened(parts) as directory:
                        self._own(directory, None, entry)
                        self._describe(directory, entry)
                        os.fchmod(directory, stat.S_IMODE(entry.mode))
                        _date(directory, entry)
        finally:
            os.close(self._root)

    def put(self, entry: Entry, content: IO[bytes] | None = None) -> None:
        """Makes one entry; a later one replaces an earlier one of its name, as tar does. Raises ``InvalidInput``."""
        parts = split(entry.path)
        if not parts:
            if stat.S_ISDIR(entry.mode):
                self._modes[()] = entry
            return
        parts = (*self._reach(parts[:-1]), parts[-1])
        with self._opened(parts[:-1], make=True) as parent:
            if stat.S_ISDIR(entry.mode):
                self._put_directory(parent, parts, entry)
            else:
                self._clear(parent, parts[-1], entry)
                self._put_other(parent, parts[-1], entry, content)

    def remove(self, path: bytes) -> None:
        """What the layers below have at that path is gone; what this layer has there stays."""
        parts = split(path)
        if not parts:
            raise InvalidInput("import: a layer removes its own root")
        self._removed[*self._reach(parts[:-1]), parts[-1]] = None

    def hide(self, path: bytes) -> None:
        """What the layers below have in that directory is gone; what this layer has there stays."""
        self._opaque[self._reach(split(path))] = None

    def _mark(self) -> None:
        """Writes down what is removed and hidden, for an overlay to read."""
        if not self._below:
            return
        for parts in self._removed:
            if any(parts[:depth] in self._opaque for depth in range(len(parts))):
                continue
            with self._opened(parts[:-1], make=True) as parent:
                try:
                    found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                except FileNotFoundError:
                    os.mknod(parts[-1], stat.S_IFCHR, 0, dir_fd=parent)
                    continue
                if stat.S_ISDIR(found.st_mode):
                    self._opaque[parts] = None
        for parts in self._opaque:
            with self._opened(parts, make=True) as directory:
                os.setxattr(directory, OPAQUE, b"y")

    def _reach(self, parts: Parts) -> Parts:
        """Where that directory is, after the links of the layers below; its parents are not made yet."""
        known = self._reached.get(parts)
        if known is None:
            known = self._reached[parts] = self._follow(parts)
        return known

    def _follow(self, parts: Parts) -> Parts:
        done: Parts = ()
        todo = list(parts)
        links = 0
        while todo:
            name = todo.pop(0)
            if name == b"..":
                done = done[:-1]
                continue
            below = None if self._has((*done, name)) else self._below.find((*done, name))
            if below is None or not stat.S_ISLNK(below.found.st_mode):
                done = (*done, name)
                continue
            links += 1
            if links > LINKS:
                raise InvalidInput(f"import: {os.fsdecode(b'/'.join(parts))!r} goes through more than {LINKS} links")
            target = os.readlink(below.path)
            done = () if target.startswith(b"/") else done
            todo = [part for part in target.split(b"/") if part not in (b"", b".")] + todo
        return done

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
                    raise InvalidInput(
                        f"import: {path!r} is no directory, but an entry goes through it; a link there may lead out"
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
            os.fchmod(inner, 0o755)
            below = self._below.find(make)
            if below is not None and stat.S_ISDIR(below.found.st_mode):
                as_below = Entry(b"/".join(make), below.found.st_mode, below.found.st_uid, below.found.st_gid)
                self._modes[make] = replace(as_below, mtime=below.found.st_mtime_ns)
            return inner

    def _put_directory(self, parent: int, parts: Parts, entry: Entry) -> None:
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(parts[-1], dir_fd=parent)
                os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._modes[parts] = entry
        self._reached[parts] = parts

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
            _date(parent, entry, name)
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
        if source:
            source = (*self._reach(source[:-1]), source[-1])
            self._bring_up(source, entry)
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

    def _bring_up(self, source: Parts, entry: Entry) -> None:
        """A hard link to a file of a layer below brings that file into this one, as writing to it would."""
        below = None if self._has(source) else self._below.find(source)
        if below is None or not stat.S_ISREG(below.found.st_mode):
            return
        path, found = below.path, below.found
        up = Entry(b"/".join(source), found.st_mode, found.st_uid, found.st_gid, attributes=attributes(path))
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
            self.put(replace(up, mtime=found.st_mtime_ns), file)

    def _put_file(self, parent: int, name: bytes, entry: Entry, content: IO[bytes] | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=parent), "wb", buffering=0) as file:
            if content is not None:
                shutil.copyfileobj(content, file, CHUNK)
            self._own(file.fileno(), None, entry)
            self._describe(file.fileno(), entry)
            os.fchmod(file.fileno(), stat.S_IMODE(entry.mode))
            _date(file.fileno(), entry)

    def _describe(self, file: int, entry: Entry) -> None:
        for name, value in entry.attributes.items():
            if name.startswith(OVERLAY):  # it would redirect or hide what the image does not say
                self.notes.add("overlay attributes left out", entry.path)
                continue
            try:
                os.setxattr(file, name, value)
            except OSError:
                self.notes.add(f"attributes {name.partition('.')[0]}.* left out", entry.path)

    def _own(self, directory: int, name: bytes | None, entry: Entry) -> None:
        uid, gid = entry.uid, entry.gid
        if not (0 <= uid < IDS and 0 <= gid < IDS):
            self.notes.add(f"owners from {IDS} on given to nobody", entry.path)
            uid, gid = (id_ if 0 <= id_ < IDS else NOBODY for id_ in (uid, gid))
        if os.geteuid() != 0:
            return
        if name is None:
            os.fchown(directory, uid, gid)
        else:
            os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)


def _date(directory: int, entry: Entry, name: bytes | None = None) -> None:
    if entry.mtime is None:
        return
    times = (entry.mtime, entry.mtime)
    if name is None:
        os.utime(directory, ns=times)
    else:
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)


def split(path: bytes) -> Parts:
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
    with NewTree(top, notes) as layer:
        for path, found in walk(base):
            full = os.path.join(base, path) if path else base
            first = names.setdefault((found.st_dev, found.st_ino), path)
            hard = stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and first != path
            target = first if hard else os.readlink(full) if stat.S_ISLNK(found.st_mode) else b""
            carried = {} if hard or stat.S_ISLNK(found.st_mode) else attributes(full)
            entry = Entry(
                path, found.st_mode, found.st_uid, found.st_gid, target, hard, carried, mtime=found.st_mtime_ns
            )
            if stat.S_ISREG(found.st_mode) and not hard:
                with open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
                    layer.put(entry, file)
            else:
                layer.put(entry)
    return notes
