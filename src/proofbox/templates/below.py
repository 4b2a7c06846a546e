"""What a stack of layers shows at a path, as an overlay of them would: read on the host, without mounting anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from proofbox.errors import InvalidInput
from proofbox.kit.newtree import Parts
from proofbox.templates.tree import OPAQUE, is_whiteout

LINKS_MOST: Final = 40
"""Links that one path may go through, as in the kernel."""


Enter = Callable[[Parts], bool]
"""Whether to look into the directory of that path."""


@dataclass(frozen=True, slots=True)
class Found:
    """One entry: where it is on the host, and what it is."""

    path: bytes
    found: os.stat_result


def follow(
    parts: Sequence[bytes], find: Callable[[Parts], Found | None], *, last: bool = True, said: str = ""
) -> Parts:
    """The path without links and dots, as ``find`` shows them; what it does not show is taken as it is.

    ``last``: a link at the end counts too. Raises ``InvalidInput``, which begins with ``said``, for links without end.
    """
    done: Parts = ()
    todo = list(parts)
    links = 0
    while todo:
        name = todo.pop(0)
        if name in (b"", b"."):
            continue
        if name == b"..":
            done = done[:-1]
            continue
        found = find((*done, name)) if todo or last else None
        if found is None or not stat.S_ISLNK(found.found.st_mode):
            done = (*done, name)
            continue
        links += 1
        if links > LINKS_MOST:
            raise InvalidInput(f"{said}{os.fsdecode(b'/'.join(parts))!r} goes through more than {LINKS_MOST} links")
        target = os.readlink(found.path)
        done = () if target.startswith(b"/") else done
        todo = [*target.split(b"/"), *todo]
    return done


class Below:
    """Layers of the store, the first one on top. Nobody changes them; links in them are never followed."""

    def __init__(self, trees: Sequence[str | bytes | os.PathLike[str]]) -> None:
        self.trees = tuple(os.fsencode(tree) for tree in trees)

    def __bool__(self) -> bool:
        return bool(self.trees)

    def find(self, parts: Parts) -> Found | None:
        """What is seen there; None for nothing, and for a path that goes through a link or a file."""
        shown = self._at(parts)
        return shown[0] if shown else None

    def names(self, parts: Parts) -> list[bytes]:
        """What is seen in that directory, sorted; nothing if it is none."""
        return _merged(self._at(parts))

    def walk(self, parts: Parts, enter: Enter | None = None) -> Iterator[tuple[Parts, Found]]:
        """Everything there and below, directories before what they hold, without following links.

        ``enter`` says of a directory whether to look into it; where it is given, one that is closed to us is an error
        (``PermissionError``), else what it holds is left out.
        """
        return self._walk(parts, self._at(parts), enter)

    def _walk(self, parts: Parts, shown: list[Found], enter: Enter | None) -> Iterator[tuple[Parts, Found]]:
        if not shown:
            return
        yield parts, shown[0]
        directories = _directories(shown)
        if not directories or (enter is not None and not enter(parts)):
            return
        try:
            names = _merged(shown)
        except PermissionError:
            if enter is not None:
                raise
            return
        for name in names:
            yield from self._walk((*parts, name), self._shown(directories, (name,)), enter)

    def _at(self, parts: Parts) -> list[Found]:
        shown = self._shown(self.trees, ())
        for depth in range(1, len(parts) + 1):
            shown = self._shown(_directories(shown), parts[depth - 1 : depth])
        return shown

    @staticmethod
    def _shown(directories: Sequence[bytes], name: Parts) -> list[Found]:
        """The entries of that name that are seen: one that is no directory, or directories that are merged."""
        shown: list[Found] = []
        for directory in directories:
            path = os.path.join(directory, *name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if is_whiteout(found) or (shown and not stat.S_ISDIR(found.st_mode)):
                break
            shown.append(Found(path, found))
            if not stat.S_ISDIR(found.st_mode) or is_opaque(path):
                break
        return shown


def _directories(shown: Sequence[Found]) -> list[bytes]:
    return [each.path for each in shown if stat.S_ISDIR(each.found.st_mode)]


def _merged(shown: Sequence[Found]) -> list[bytes]:
    """The names that are seen in these directories, the first one on top."""
    names: dict[bytes, bool] = {}
    for directory in _directories(shown):
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name not in names:
                    names[entry.name] = not is_whiteout(entry.stat(follow_symlinks=False))
    return sorted(name for name, there in names.items() if there)


def is_opaque(directory: str | os.PathLike[str] | bytes) -> bool:
    """Whether it hides what the layers below have in it."""
    try:
        return os.getxattr(directory, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False
