"""What a stack of layers shows at a path, as an overlay of them would: read on the host, without mounting anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from proofbox.kit.newtree import Parts
from proofbox.templates.tree import OPAQUE, is_whiteout


@dataclass(frozen=True, slots=True)
class Found:
    """One entry: where it is on the host, and what it is."""

    path: bytes
    found: os.stat_result


class Below:
    """Layers of the store, the first one on top. Nobody changes them; links in them are never followed."""

    def __init__(self, trees: Sequence[str | os.PathLike[str]]) -> None:
        self._trees = tuple(os.fsencode(tree) for tree in trees)

    def __bool__(self) -> bool:
        return bool(self._trees)

    def find(self, parts: Parts) -> Found | None:
        """What is seen there; None for nothing, and for a path that goes through a link or a file."""
        trees, shown = list(self._trees), self._shown(self._trees, ())
        for depth in range(1, len(parts) + 1):
            trees = [found.path for found in shown if stat.S_ISDIR(found.found.st_mode)]
            shown = self._shown(trees, parts[depth - 1 : depth])
        return shown[0] if shown else None

    def names(self, parts: Parts) -> list[bytes]:
        """What is seen in that directory, sorted; nothing if it is none."""
        shown = self._shown(self._trees, ())
        for depth in range(1, len(parts) + 1):
            trees = [found.path for found in shown if stat.S_ISDIR(found.found.st_mode)]
            shown = self._shown(trees, parts[depth - 1 : depth])
        names: dict[bytes, bool] = {}
        for directory in shown:
            if stat.S_ISDIR(directory.found.st_mode):
                for entry in os.scandir(directory.path):
                    if entry.name not in names:
                        names[entry.name] = not is_whiteout(entry.stat(follow_symlinks=False))
        return sorted(name for name, there in names.items() if there)

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


def is_opaque(directory: str | os.PathLike[str] | bytes) -> bool:
    """Whether it hides what the layers below have in it."""
    try:
        return os.getxattr(directory, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False
