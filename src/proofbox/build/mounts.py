"""``RUN --mount``: what one command sees besides its stage, and what never becomes part of a layer.

A directory is mounted as a layer of a target of its own. So what it hides stays as it is, and what the command writes
there is apart from all that it writes elsewhere. A file lies in a layer that the result is made without.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from proofbox.build.copying import Item
from proofbox.build.inside import Gathered, Look, filler, looked
from proofbox.build.recipe import Mount
from proofbox.errors import InvalidInput
from proofbox.kit.newtree import Parts
from proofbox.model.template import Layer, Template, targets
from proofbox.sandbox.volumes import is_made
from proofbox.templates.store import Store
from proofbox.templates.unpack import Notes
from proofbox.templates.view import View, names_of, path_of

MOUNTED: Final = "/mounted"
"""What is mounted is gathered as if it were copied there."""

_NAMES: Final = {"src": "source", "dst": "target", "destination": "target", "readonly": "ro", "readwrite": "rw"}
_KNOWN: Final = {
    "bind": {"source", "target", "from", "ro", "rw"},
    "cache": {"id", "target", "ro", "rw", "sharing", "mode", "uid", "gid"},
    "tmpfs": {"target", "size"},
    "secret": {"id", "target", "required", "mode", "uid", "gid", "env"},
    "ssh": {"id", "target", "required", "mode", "uid", "gid"},
}


def parse(text: str) -> Mount | None:
    """The mount that ``--mount=text`` says; None for a secret that the command can do without: nobody gives it one.

    Raises ``InvalidInput``.
    """
    given: dict[str, str] = {}
    for field in text.split(","):
        key, equals, value = field.partition("=")
        given[_NAMES.get(key.lower(), key.lower())] = value if equals else "true"
    kind = given.pop("type", "bind")
    if kind not in _KNOWN:
        raise InvalidInput(f"--mount of type {kind} is not supported; what is: {', '.join(_KNOWN)}")
    if unknown := sorted(given.keys() - _KNOWN[kind]):
        raise InvalidInput(f"--mount of type {kind} with {', '.join(unknown)} is not supported")
    if kind in ("secret", "ssh"):
        if given.get("required", "false").lower() not in ("false", "0"):
            raise InvalidInput(f"--mount of type {kind} is required, and no build is given any here")
        return None
    if not given.get("target"):
        raise InvalidInput(f"--mount of type {kind} needs a target")
    if "$" in given.get("from", ""):
        raise InvalidInput("--mount from=$...: no variables there; name what they stand for with FROM ... AS")
    try:
        owner, mode = (int(given.get("uid", "0")), int(given.get("gid", "0"))), int(given.get("mode", "755"), 8)
    except ValueError as error:
        raise InvalidInput(f"--mount={text}: {error}") from error
    source = given.get("source", ".") if kind == "bind" else None
    return Mount(target=given["target"], source=source, origin=given.get("from"), owner=owner, mode=mode)


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount with an absolute target and what it shows; an empty directory if that is None."""

    mount: Mount
    found: Gathered | None = None

    def described(self) -> tuple[object, ...]:
        """All that counts of it, for a digest."""
        mount = self.mount
        return (mount.target, mount.owner, mount.mode, None if self.found is None else self.found.digest)

    def items(self) -> tuple[Item, ...]:
        """What it shows, below ``MOUNTED``; its top first."""
        if self.found is None:
            return (Item(names_of(MOUNTED), stat.S_IFDIR | self.mount.mode, self.mount.owner),)
        return self.found.copying.items


@dataclass(frozen=True, slots=True)
class Seen:
    """What a command with mounts runs over."""

    template: Template
    directories: tuple[str, ...] = ()
    """Targets of layers: what is written there is dropped."""
    files: tuple[str, ...] = ()

    def kept(self, layers: Sequence[Layer]) -> tuple[Layer, ...]:
        """Of the layers that the command left those of the stage. Raises ``InvalidInput`` if a mounted file is among
        what it wrote or removed.
        """
        own = tuple(layer for layer in layers if layer.target not in self.directories)
        for path in self.files:
            if any(_has(layer, names_of(path)) for layer in own):
                raise InvalidInput(f"the command changed {path}, which is mounted for it to read")
        return own


def with_mounts(template: Template, mounted: Sequence[Mounted], store: Store) -> Seen:
    """``template`` with these in it. Blocks. Raises ``InvalidInput``, ``OSError``, ``StoreFailed``."""
    seen = Seen(template)
    for each in mounted:
        seen = _with(seen, each, store)
    if not mounted:
        return seen
    about = msgspec.json.encode(["mounts", template.digest, [each.described() for each in mounted]])
    digest = f"sha256:{hashlib.sha256(about).hexdigest()}"
    return replace(seen, template=msgspec.structs.replace(seen.template, digest=digest))


def _with(seen: Seen, mounted: Mounted, store: Store) -> Seen:
    template, path = seen.template, mounted.mount.target
    place = looked(Look(path, template.layers))
    path = path_of(place.parts)
    if path in targets(template) or is_made(os.fsencode(path)):
        raise InvalidInput(f"--mount: {path} is a mount of every sandbox of this base; choose another target")
    items = mounted.items()
    top = items[0]
    is_directory = stat.S_ISDIR(top.mode)
    if place.there and not is_directory:
        raise InvalidInput(f"--mount: {path} is a directory, and what is to be seen there is none")
    if not is_directory:
        template = _over(template, replace(top, path=place.parts), store)
        return Seen(template, seen.directories, (*seen.files, path))
    if not place.there:
        template = _over(template, Item(place.parts, stat.S_IFDIR | 0o755, (0, 0)), store)
    layer = _layer(path, filler(items, names_of(MOUNTED), ()), store)
    # Behind the others: targets are mounted in the order in which they are met.
    template = msgspec.structs.replace(template, layers=(*template.layers, layer))
    return Seen(template, (*seen.directories, path), seen.files)


def _over(template: Template, item: Item, store: Store) -> Template:
    view = View.of(template)
    target = view.target(item.path[:-1])
    layer = _layer(path_of(target), filler((item,), target, view.below(target).trees), store)
    return msgspec.structs.replace(template, layers=(layer, *template.layers))


def _layer(target: str, fill: Callable[[Path], Notes], store: Store) -> Layer:
    digest = store.put_layer(fill)
    return Layer(target, str(store.layers.tree(digest)), digest)


def _has(layer: Layer, path: Parts) -> bool:
    """Whether a layer says anything of a path itself; none that goes through a link is one of the command's mounts."""
    above = names_of(layer.target)
    if path[: len(above)] != above:
        return False
    place = os.fsencode(layer.source)
    for number, name in enumerate(path[len(above) :], len(above) + 1):
        place = os.path.join(place, name)
        try:
            found = os.lstat(place)
        except OSError:
            return False
        if number < len(path) and not stat.S_ISDIR(found.st_mode):
            return False
    return True
