"""Files of a context, a stage or a template into a layer, without a sandbox: links of neither side lead out of it."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from proofbox.build.ignore import Ignored, pattern
from proofbox.build.plan import CopyFiles
from proofbox.errors import InvalidInput
from proofbox.kit.newtree import Entry, Parts
from proofbox.templates.below import Found
from proofbox.templates.tar import is_tar, tar_entries
from proofbox.templates.tree import OVERLAY, attributes, content_digest, seen_owner
from proofbox.templates.unpack import NewTree
from proofbox.templates.view import View, names_of

_MAGIC: Final = ("*", "?", "[")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to be made. ``content``: of a file that is written in the recipe; ``archive``: to be unpacked there."""

    path: Parts
    mode: int
    owner: tuple[int, int]
    source: bytes = b""
    link: bytes = b""
    content: bytes | None = None
    archive: bool = False
    mtime: int | None = None
    attributes: Mapping[str, bytes] = field(default_factory=dict)

    def described(self) -> tuple[object, ...]:
        """All that counts of it, for a digest: its content, and not where or when that was."""
        what = self.link.hex()
        if self.content is not None:
            what = hashlib.sha256(self.content).hexdigest()
        elif stat.S_ISREG(self.mode):
            what = content_digest(self.source)
        return (b"/".join(self.path).hex(), self.mode, self.owner, what, self.archive, self.attributes)

    def put(self, new: NewTree, path: Parts) -> None:
        """Makes it there. Raises ``InvalidInput``, ``OSError``."""
        name = b"/".join(path)
        if self.archive:
            for inner, content in tar_entries(Path(os.fsdecode(self.source)), name):
                new.put(inner, content)
            return
        entry = Entry(name, self.mode, *self.owner, self.link, attributes=self.attributes, mtime=self.mtime)
        if self.content is not None:
            new.put(entry, io.BytesIO(self.content))
        elif stat.S_ISREG(self.mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.source, flags), "rb", buffering=0) as file:
                new.put(entry, file)
        else:
            new.put(entry)


@dataclass(frozen=True, slots=True)
class Copying:
    """What an instruction comes to."""

    items: tuple[Item, ...]

    def digest(self) -> str:
        """Of all that counts."""
        return hashlib.sha256(msgspec.json.encode([item.described() for item in self.items])).hexdigest()

    def targets(self, into: View) -> dict[Parts, list[Item]]:
        """The items by the target of the layer that they belong in."""
        found: dict[Parts, list[Item]] = {}
        for item in self.items:
            found.setdefault(into.target(item.path[:-1]), []).append(item)
        return found


def gather(copy: CopyFiles, origin: View, ignored: Ignored, into: View) -> Copying:
    """What ``copy`` means here. Raises ``InvalidInput`` for what is not there, and ``OSError``."""
    matches = [match for source in copy.sources for match in _matches(source, origin, ignored)]
    owner = owner_of(copy.owner, into)
    to = into.resolve(names_of(copy.to))
    check_way(to, into)
    there = into.find(to)
    is_directory = there is not None and stat.S_ISDIR(there.found.st_mode)
    inside = copy.to.endswith("/") or is_directory or not to
    if len(matches) + len(copy.inline) > 1 and not inside:
        raise InvalidInput(f"several files are copied to {copy.to!r}, which is no directory; end it with '/'")
    items: list[Item] = []
    for match in matches:
        items += _items(match, origin, ignored, to, inside, copy, owner)
    for name, content in copy.inline:
        path = (*to, os.fsencode(name)) if inside else to
        mode = 0o644 if copy.mode is None else copy.mode
        items.append(Item(path, stat.S_IFREG | mode, owner, content=content.encode()))
    return Copying(tuple(_needed(items, into)))


def owner_of(owner: str | None, view: View) -> tuple[int, int]:
    """Ids of ``user``, ``user:group``; names as the template has them; a user alone stands for the group of its number.

    Raises ``InvalidInput`` for a name that the template does not have.
    """
    if owner is None:
        return 0, 0
    user, _, group = owner.partition(":")
    uid = _id(user or "0", "etc/passwd", view)
    return uid, _id(group, "etc/group", view) if group else uid


def _id(name: str, file: str, view: View) -> int:
    if name.isdigit():
        return int(name)
    for line in (view.read(file) or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) > 2 and fields[2].isdigit():
            return int(fields[2])
    raise InvalidInput(f"owner {name!r} is not in the template's /{file}")


def _needed(items: Iterable[Item], into: View) -> Iterator[Item]:
    """Without directories that are there, which stay as they are. Raises ``InvalidInput`` for a file instead of one."""
    absent: set[Parts] = set()
    for item in items:
        makes_directory = stat.S_ISDIR(item.mode)
        unpacked = makes_directory or item.archive
        if item.path[:-1] in absent or not _has_directory(into, item.path, follow=unpacked) or item.archive:
            yield item
            if makes_directory:
                absent.add(item.path)
        elif not makes_directory:
            raise InvalidInput(f"/{_text(item.path)} is a directory, and a file would take its place")


def _has_directory(into: View, path: Parts, *, follow: bool) -> bool:
    there = into.find(into.resolve(path) if follow else path)
    if there is not None and follow:
        _check_directory(path, there)
    return there is not None and stat.S_ISDIR(there.found.st_mode)


def check_way(path: Parts, into: View) -> None:
    """Raises ``InvalidInput`` for a path without links that goes through what is no directory: one would replace it."""
    for depth in range(1, len(path)):
        if (there := into.find(path[:depth])) is None:
            return
        _check_directory(path[:depth], there)


def _check_directory(path: Parts, there: Found) -> None:
    if not stat.S_ISDIR(there.found.st_mode):
        raise InvalidInput(f"/{_text(path)} is there and no directory, and one would take its place")


def _matches(source: str, origin: View, ignored: Ignored) -> list[Parts]:
    """The paths that a pattern means, links at their end followed."""
    found: list[Parts] = [()]
    for name in names_of(source):
        if name == b"..":
            found = [path[:-1] for path in found]
        elif any(magic in os.fsdecode(name) for magic in _MAGIC):
            fits = pattern(os.fsdecode(name))
            found = [
                (*path, each)
                for path in found
                for each in origin.names(origin.resolve(path))
                if fits.fullmatch(os.fsdecode(each))
            ]
        else:
            found = [(*path, name) for path in found]
    there = [path for path in found if not (path and ignored.covers(_text(path))) and _seen(origin, path)]
    if not there and not any(magic in source for magic in _MAGIC):  # a pattern may fit nothing, as for engines
        raise InvalidInput(f"{source!r} is not in what is copied from, or is ignored there")
    return there


def _seen(origin: View, path: Parts) -> bool:
    return origin.find(origin.resolve(path)) is not None


def _items(
    match: Parts, origin: View, ignored: Ignored, to: Parts, inside: bool, copy: CopyFiles, owner: tuple[int, int]
) -> Iterator[Item]:
    path = origin.resolve(match)
    found = origin.find(path)
    if found is None:
        return
    if not stat.S_ISDIR(found.found.st_mode):
        target = (*to, match[-1]) if inside else to
        unpacks = copy.unpack and stat.S_ISREG(found.found.st_mode) and is_tar(Path(os.fsdecode(found.path)))
        yield from (
            [Item(to, stat.S_IFREG, owner, found.path, archive=True)] if unpacks else _one(target, found, copy, owner)
        )
        return
    if copy.whole:
        yield from _one(to, found, copy, owner)
    elif to:
        yield Item(to, stat.S_IFDIR | 0o755, owner)
    for inner, each in _below(origin, path, ignored):
        yield from _one((*to, *inner[len(path) :]), each, copy, owner)


def _below(origin: View, top: Parts, ignored: Ignored) -> Iterator[tuple[Parts, Found]]:
    def enter(path: Parts) -> bool:
        return path == top or not (ignored.prunes and ignored.covers(_text(path)))

    for path, found in origin.walk(top, enter):
        if path != top and not ignored.covers(_text(path)):
            yield path, found


def _one(path: Parts, found: Found, copy: CopyFiles, owner: tuple[int, int]) -> Iterator[Item]:
    """None for what is neither a file nor a directory nor a link. What comes of a stage or a template has the owner and
    the attributes that it has there; those of a context are this host's.
    """
    kind, mtime = found.found.st_mode, found.found.st_mtime_ns
    if copy.origin is not None and copy.owner is None:
        owner = seen_owner(found.found)
    if stat.S_ISLNK(kind):
        yield Item(path, kind, owner, link=os.readlink(found.path), mtime=mtime)
    elif stat.S_ISREG(kind) or stat.S_ISDIR(kind):
        mode = stat.S_IFMT(kind) | (stat.S_IMODE(kind) if copy.mode is None else copy.mode)
        carried = {} if copy.origin is None else attributes(found.path)
        kept = {name: value for name, value in carried.items() if not name.startswith(OVERLAY)}
        yield Item(path, mode, owner, found.path, mtime=mtime, attributes=kept)


def _text(path: Parts) -> str:
    return os.fsdecode(b"/".join(path))
