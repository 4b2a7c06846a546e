"""A root file system or a layer into a new directory, as ``kit/newtree.py`` does it, with owners and with layers below.

A path whose directories are not in this layer goes on as in those below. The source is hostile, and so is what the
layers below hold: links in them are read, never followed by the kernel.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from proofbox.errors import InvalidInput
from proofbox.kit import newtree
from proofbox.kit.newtree import Entry, Parts, split
from proofbox.templates.below import Below, Found, follow
from proofbox.templates.room import Room
from proofbox.templates.tree import OPAQUE, OVERLAY, attributes, walk

IDS: Final = 65_536
NOBODY: Final = 65_534


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


class NewTree(newtree.NewTree):
    """A directory that is being filled. ``below``: the layers that it will lie on; ``room``: what it may take, where
    that is not the whole of it. Not for two threads.

    A path whose directories are not in this layer goes on as in those below: with the same owner and mode, and through
    a link to where it leads, inside.
    """

    def __init__(self, top: Path, notes: Notes, below: Below | None = None, room: Room | None = None) -> None:
        self._room = Room.whole() if room is None else room
        super().__init__(top, mode=0o755, strict=False, left_out=notes.add)
        self.notes = notes
        self._below = below or Below(())
        self._removed: dict[Parts, None] = {}
        self._opaque: dict[Parts, None] = {}
        self._reached: dict[Parts, Parts] = {(): ()}
        if root := self._below.find(()):
            self._modes[()] = Entry(b"", root.found.st_mode, root.found.st_uid, root.found.st_gid)

    def __enter__(self) -> NewTree:
        return self

    def put(self, entry: Entry, content: IO[bytes] | None = None) -> None:
        """As its parent's; raises ``InvalidInput`` too where there is no room for it."""
        self._room.take_file()
        super().put(entry, None if content is None else self._room.counted(content))

    def finish(self) -> None:
        """Sets what is set last."""
        self._mark()
        super().finish()

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
        """Writes down what is removed and hidden, for an overlay to read. A directory in which something is hidden or
        removed is there, as engines have it. A mark that hides nothing would be listed as an entry.
        """
        for parts in self._opaque:
            with self._opened(parts, make=True):
                pass
        for parts in sorted(self._removed, key=len):
            above = {parts[:depth] for depth in range(len(parts))}
            if above & (self._opaque.keys() | self._removed.keys()):
                continue
            with self._opened(parts[:-1], make=True) as parent:
                try:
                    found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                except FileNotFoundError:
                    if self._below.find(parts) is not None:
                        os.mknod(parts[-1], stat.S_IFCHR, 0, dir_fd=parent)
                    continue
                if stat.S_ISDIR(found.st_mode):
                    self._opaque[parts] = None
        for parts in self._opaque if self._below else ():
            with self._opened(parts, make=True) as directory:
                mark_opaque(directory)

    def _reach(self, parts: Parts) -> Parts:
        """Where that directory is, after the links of the layers below; its parents are not made yet."""
        known = self._reached.get(parts)
        if known is None:
            known = self._reached[parts] = follow(parts, self._lower, said="import: ")
        return known

    def _lower(self, parts: Parts) -> Found | None:
        """What the layers below show there, unless this one has something there itself."""
        return None if self._has(parts) else self._below.find(parts)

    def _made(self, directory: int, parts: Parts) -> None:
        self._room.take_file()
        super()._made(directory, parts)
        below = self._below.find(parts)
        if below is not None and stat.S_ISDIR(below.found.st_mode):
            as_below = Entry(b"/".join(parts), below.found.st_mode, below.found.st_uid, below.found.st_gid)
            self._modes[parts] = replace(as_below, mtime=below.found.st_mtime_ns)

    def _put_directory(self, parent: int, parts: Parts, entry: Entry) -> None:
        super()._put_directory(parent, parts, entry)
        self._reached[parts] = parts

    def _hard_link(self, parent: int, name: bytes, entry: Entry) -> None:
        source = split(entry.target)
        if source:
            self._bring_up((*self._reach(source[:-1]), source[-1]))
        super()._hard_link(parent, name, entry)

    def _bring_up(self, source: Parts) -> None:
        """A hard link to a file of a layer below brings that file into this one, as writing to it would."""
        below = None if self._has(source) else self._below.find(source)
        if below is None or not stat.S_ISREG(below.found.st_mode):
            return
        path, found = below.path, below.found
        up = Entry(b"/".join(source), found.st_mode, found.st_uid, found.st_gid, attributes=attributes(path))
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
            self.put(replace(up, mtime=found.st_mtime_ns), file)

    def _describe(self, opened: int, entry: Entry) -> None:
        kept = {name: value for name, value in entry.attributes.items() if not name.startswith(OVERLAY)}
        if len(kept) < len(entry.attributes):  # they would redirect or hide what the image does not say
            self.notes.add("overlay attributes left out", entry.path)
        super()._describe(opened, replace(entry, attributes=kept))

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


def mark_opaque(directory: int | Path) -> None:
    """Has it hide what the layers below hold in it. As root with the mark too that overlays of root go by: see
    ``guest/launch_overlay.c``.
    """
    os.setxattr(directory, OPAQUE, b"y")
    if os.geteuid() == 0:
        os.setxattr(directory, f"trusted.{OPAQUE.removeprefix('user.')}", b"y")


def copy_directory(source: Path, top: Path) -> Notes:
    """Copies the tree ``source`` into the new directory ``top``. ``InvalidInput``, ``OSError``: remove ``top`` then."""
    notes = Notes()
    room = Room.whole(f"import of {source}")
    base = os.fsencode(source)
    names: dict[tuple[int, int], bytes] = {}
    with NewTree(top, notes, room=room) as layer:
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
