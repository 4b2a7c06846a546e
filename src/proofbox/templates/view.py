"""What a sandbox of a template sees at a path, read on the host: links lead nowhere but inside."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from proofbox.kit.newtree import Parts
from proofbox.model.template import Layer, Template
from proofbox.templates.below import Below, Enter, Found, follow


class View:
    """Directories at their targets, those of one target merged, the first one on top. Nobody may change them."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        targets = dict.fromkeys(names_of(layer.target) for layer in layers)
        self._mounts = {
            target: Below([layer.source for layer in layers if names_of(layer.target) == target]) for target in targets
        }

    @classmethod
    def of(cls, template: Template) -> View:
        """Of a template that was resolved."""
        return cls(template.layers)

    @classmethod
    def of_directory(cls, top: Path) -> View:
        """Of a directory of the host, as if it were a root."""
        return cls((Layer("/", str(top)),))

    def target(self, parts: Parts) -> Parts:
        """Where the layers lie that hold that path."""
        return max((target for target in self._mounts if parts[: len(target)] == target), key=len, default=())

    def below(self, target: Parts) -> Below:
        """The layers at that target."""
        return self._mounts.get(target, Below(()))

    def find(self, parts: Parts) -> Found | None:
        """What is seen there; None for nothing, and for a path that goes through a link."""
        target = self.target(parts)
        return self.below(target).find(parts[len(target) :])

    def names(self, parts: Parts) -> list[bytes]:
        """What is seen in that directory, sorted."""
        target = self.target(parts)
        return self.below(target).names(parts[len(target) :])

    def resolve(self, parts: Sequence[bytes], *, last: bool = True) -> Parts:
        """The path without links and dots; what is not there is taken as it is. ``last``: a link at the end counts too.

        Raises ``InvalidInput`` for links without end.
        """
        return follow(parts, self.find, last=last)

    def walk(self, parts: Parts, enter: Enter | None = None) -> Iterator[tuple[Parts, Found]]:
        """As ``Below.walk``, of all that is seen."""
        target = self.target(parts)
        inner = [each for each in self._mounts if each[: len(parts)] == parts and len(each) > len(parts)]
        own = None if enter is None else lambda path: enter((*target, *path))
        for path, found in self.below(target).walk(parts[len(target) :], own):
            whole = (*target, *path)
            if not any(whole[: len(each)] == each for each in inner):  # something else is seen there
                yield whole, found
            elif whole in inner:
                yield from self.walk(whole, enter)

    def read(self, path: str, most: int = 64 << 20) -> bytes | None:
        """The first ``most`` bytes of a file, links followed inside; None if there is none."""
        found = self.find(self.resolve(names_of(path)))
        if found is None or not stat.S_ISREG(found.found.st_mode):
            return None
        with open(os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read(most)


def names_of(path: str) -> Parts:
    """The names in a path, without empty ones and dots; ``..`` stays."""
    return tuple(name for name in os.fsencode(path).split(b"/") if name not in (b"", b"."))


def path_of(parts: Parts) -> str:
    """The absolute path of these names."""
    return "/" + os.fsdecode(b"/".join(parts))
