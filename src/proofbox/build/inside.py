"""What a build does with files on the host: by us, or where others than us own what it meets, as root of the ids that
the host lends us. Then owners are kept and given without root too.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from proofbox.build.copying import Copying, Item, check_way, gather
from proofbox.build.ignore import Ignored
from proofbox.build.ignore import parse as parse_ignore
from proofbox.build.plan import CopyFiles
from proofbox.errors import InvalidInput
from proofbox.host.idmap import find_ids
from proofbox.host.subids import run_module_inside
from proofbox.kit.newtree import Parts
from proofbox.model.template import Layer
from proofbox.templates.below import Below
from proofbox.templates.room import Room
from proofbox.templates.unpack import NewTree, Notes
from proofbox.templates.view import View, names_of

Layers = tuple[Layer, ...]
Result = TypeVar("Result", bound=msgspec.Struct)


class Gathered(msgspec.Struct, frozen=True, tag=True):
    """What is to be copied, and the digest of all that counts of it."""

    copying: Copying
    digest: str


class Looked(msgspec.Struct, frozen=True, tag=True):
    """A path without links, and whether a directory is there."""

    parts: Parts
    there: bool


class Filled(msgspec.Struct, frozen=True, tag=True):
    """What is not as it was, see ``Notes``; names as bytes, which may be no text."""

    noted: dict[str, tuple[bytes, ...]]


class _Failed(msgspec.Struct, frozen=True, tag=True):
    """``number`` of an ``OSError``; 0 for an ``InvalidInput``."""

    text: str
    number: int = 0
    path: bytes = b""


class Gather(msgspec.Struct, frozen=True, tag=True):
    """See ``copying.gather``. ``ignored``: the text of a ``.dockerignore``."""

    copy: CopyFiles
    origin: Layers
    ignored: str
    into: Layers

    def do(self) -> Gathered:
        """Raises ``InvalidInput``, ``OSError``; changes nothing."""
        ignored = parse_ignore(self.ignored) if self.ignored else Ignored()
        copying = gather(self.copy, View(self.origin), ignored, View(self.into))
        return Gathered(copying, copying.digest())


class Look(msgspec.Struct, frozen=True, tag=True):
    """What a template has at a path."""

    path: str
    into: Layers

    def do(self) -> Looked:
        """Raises ``InvalidInput``, ``OSError``; changes nothing."""
        view = View(self.into)
        parts = view.resolve(names_of(self.path))
        check_way((*parts, b""), view)
        found = view.find(parts)
        return Looked(parts, found is not None and stat.S_ISDIR(found.found.st_mode))


class Fill(msgspec.Struct, frozen=True, tag=True):
    """The new directory ``tree`` with these items, for lying at ``target`` on ``below``, the first one on top."""

    tree: str
    items: tuple[Item, ...]
    target: Parts
    below: tuple[bytes, ...]

    def do(self) -> Filled:
        """Raises ``InvalidInput``, ``OSError``; remove ``tree`` then."""
        notes = Notes()
        with NewTree(Path(self.tree), notes, Below(self.below), Room.whole("copy")) as new:
            for item in self.items:
                item.put(new, item.path[len(self.target) :])
        return Filled({why: tuple(map(os.fsencode, paths)) for why, paths in notes.kept.items()})


def gathered(request: Gather) -> Gathered:
    """Blocks. Raises ``InvalidInput``, ``OSError``."""
    return _where_it_may(request, Gathered)


def looked(request: Look) -> Looked:
    """Blocks. Raises ``InvalidInput``, ``OSError``."""
    return _where_it_may(request, Looked)


def _where_it_may(request: Gather | Look, kind: type[Result]) -> Result:
    """By us if that is enough: inside it takes a Python more."""
    try:
        done = request.do()
    except PermissionError:
        if find_ids().namespace < 0:
            raise
        return _inside(request, kind)
    assert isinstance(done, kind)
    return done


def filled(request: Fill) -> Notes:
    """Blocks; ends with this process. Raises ``InvalidInput``, ``OSError``; remove the tree then."""
    done = _inside(request, Filled) if find_ids().namespace >= 0 else request.do()
    return Notes({why: [os.fsdecode(path) for path in paths] for why, paths in done.noted.items()})


def filler(items: tuple[Item, ...], target: Parts, below: tuple[bytes, ...]) -> Callable[[Path], Notes]:
    """What fills the tree of a new layer with these: see ``Fill``, and ``filled`` for how it goes."""
    return lambda tree: filled(Fill(str(tree), items, target, below))


def _inside(request: Gather | Look | Fill, kind: type[Result]) -> Result:
    said = run_module_inside(find_ids().namespace, __name__, [], msgspec.msgpack.encode(request))
    answer: Result | _Failed = msgspec.msgpack.decode(said, type=kind | _Failed)
    if isinstance(answer, _Failed):
        raise OSError(answer.number, answer.text, answer.path) if answer.number else InvalidInput(answer.text)
    return answer


def _answered(request: Gather | Look | Fill) -> msgspec.Struct:
    try:
        return request.do()
    except InvalidInput as error:
        return _Failed(str(error))
    except OSError as error:
        return _Failed(error.strerror or str(error), error.errno or errno.EIO, os.fsencode(error.filename or ""))


if __name__ == "__main__":
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Gather | Look | Fill)
    sys.stdout.buffer.write(msgspec.msgpack.encode(_answered(asked)))
