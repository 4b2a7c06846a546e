"""The content store: layers and templates by digest, names that point to templates.

    HOME/trees/<64 hex>/             a layer, see ``layers.py``
    HOME/templates/<64 hex>.json     a template: its layers by target and digest, environment, directory, user, facts
    HOME/names/<name>                the digest that the name stands for
    HOME/pins/<64 hex>               lock file: held shared by every process that uses it, see ``pins.py``
    HOME/images, unpacked, blobs, steps   what came of an image, a layer of one, a step, see ``memo.py``
    HOME/machines/                   images of templates for virtual machines, made by the runtime for these
    HOME/fetched/                    blobs of images that are pulled now, see ``fetched.py``
    HOME/making/                     what is being made; swept when its maker is dead
    HOME/host.json, host.lock        the built-in ``host`` template, see ``host.py``

Names keep templates, templates keep layers, live processes keep what they have pinned; the rest may be collected.
Everything gets its final name by one rename, after what it refers to. All calls block: an async caller runs them in a
thread.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from proofbox.errors import InvalidInput, StoreFailed, UnknownTemplate
from proofbox.host.home import (
    MACHINES,
    data_home,
    private_directory,
    sweep_unfinished,
    sweep_workshops,
    write_atomically,
)
from proofbox.kit.durable import sync_directory
from proofbox.model.template import Layer, Template
from proofbox.templates import fetched, host
from proofbox.templates.layers import Layers
from proofbox.templates.memo import Memo
from proofbox.templates.names import DIGEST, NAME, Names
from proofbox.templates.pins import Pins
from proofbox.templates.tar import unpack_tar
from proofbox.templates.unpack import Notes, copy_directory

log = logging.getLogger("proofbox.templates")

ENV: Final[Mapping[str, str]] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of a template that brings none."""
MEMOS: Final = ("images", "unpacked", "blobs", "steps")
"""What came of what: of templates the first, of layers the others."""
OVER: Final = "over"
"""The fact that names the template at the bottom of one that was made over another."""
OVER_LAYERS: Final = "over_layers"


class Store:
    """One store. Any number of processes and threads may use the same directory at once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pins = Pins(home / "pins")
        self.layers = Layers(home, self.pins)
        self._templates, self.names = home / "templates", Names(home)
        self._swept = 0
        """What was removed when it was opened, until ``collect`` tells it."""

    def resolve(self, name: str) -> Template:
        """The template with that name or digest (``host`` is always there), pinned: nobody can remove it while we live.

        Raises ``UnknownTemplate``, and ``StoreFailed`` if the store cannot be read or ``host`` cannot be built.
        """
        if name == host.NAME:
            return self._host()
        digest = self.names.digest_of(name)
        self.pins.hold(digest)
        found = self._load(digest, name)
        if found is None:
            self.pins.drop(digest)
            raise UnknownTemplate(name, self.names.known())
        if why := outdated(self, found):
            self.pins.drop(digest)
            raise StoreFailed(f"template {name!r} {why}; make it again")
        if lacking := self._lacking(found):
            self.pins.drop(digest)
            raise StoreFailed(f"template {name!r}: its layer {lacking} is not in {self.home} any more; make it again")
        return found

    def put_layer(self, fill: Callable[[Path], Notes], *, read_back: bool = False) -> str:
        """Keeps what ``fill`` makes as a layer; its digest. As ``Layers.put``, which see."""
        return self.layers.put(fill, read_back=read_back)

    def put_template(
        self,
        layers: Iterable[tuple[str, str]],
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        user: str = "root",
        facts: Mapping[str, str],
        name: str | None = None,
        over: Template | None = None,
    ) -> Template:
        """A template of kept layers: target and digest of each, of one target the first on top. Durable and pinned.

        They lie over those of another template, where one is given. Its digest covers the layers, ``env``, ``cwd`` and
        ``user``; ``facts`` are for the record, and those of the last maker count. ``name``, if given, stands for it
        afterwards. Raises ``InvalidInput`` for a bad name or a layer
        that is not there, ``StoreFailed``; the name is as it was then. Safe to repeat.
        """
        if name is not None:
            check_name(name)
        stacked = tuple(layers)
        if over is None and not any(target == "/" for target, _ in stacked):
            raise InvalidInput(f"template {name or ''}: none of its layers is at '/'")
        lower = () if over is None else over.layers
        bottom = [] if over is None else [over.digest]
        about = msgspec.json.encode(["template", 1, stacked, sorted(env.items()), cwd, user, *bottom])
        digest = f"sha256:{hashlib.sha256(about).hexdigest()}"
        template = Template(
            digest=digest,
            name=name or digest,
            layers=(*(Layer(target, "", layer) for target, layer in stacked), *lower),
            env=dict(env),
            cwd=cwd,
            user=user,
            facts=dict(facts) | ({} if over is None else _over_facts(over)),
        )
        try:
            self._record(template)
            if name is not None:
                self.names.point(name, digest)
        except OSError as error:
            raise StoreFailed(f"template {name or digest} in {self.home}: {error}") from error
        return self._placed(template)

    def tag(self, name: str, digest: str) -> Template:
        """``name`` stands for that template from now on. Raises ``UnknownTemplate``, and as ``put_template``."""
        check_name(name)
        found = self.resolve(digest)
        try:
            self.names.point(name, found.digest)
        except OSError as error:
            raise StoreFailed(f"name {name!r} in {self.home}: {error}") from error
        return msgspec.structs.replace(found, name=name)

    def import_directory(
        self, source: Path, name: str, *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> Template:
        """Copies a root file system; nobody may change it meanwhile. The same tree has the same digest.

        Raises ``InvalidInput`` for a bad name or source, ``StoreFailed``; nothing is left then. Safe to repeat.
        """
        if not source.is_dir():
            raise InvalidInput(f"import of {source}: not a directory")
        return self.import_root(name, str(source), lambda tree: copy_directory(source, tree), env, cwd)

    def import_tar(self, source: Path, name: str, *, env: Mapping[str, str] | None = None, cwd: str = "/") -> Template:
        """Unpacks a root file system from a tar (plain, .gz, .bz2, .xz, .zst). Otherwise as ``import_directory``."""
        if not source.is_file():
            raise InvalidInput(f"import of {source}: not a file")
        return self.import_root(name, str(source), lambda tree: unpack_tar(source, tree), env, cwd)

    def import_root(
        self,
        name: str,
        source: str,
        fill: Callable[[Path], Notes],
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        facts: Mapping[str, str] | None = None,
    ) -> Template:
        """A template of the one layer that ``fill`` makes, see ``put_layer``. ``source`` is for the record."""
        check_name(name)
        layer = self.put_layer(fill)
        noted = {"source": source, "root_digest": layer} | self.layers.record(layer).notes | dict(facts or {})
        return self.put_template([("/", layer)], env=ENV if env is None else env, cwd=cwd, facts=noted, name=name)

    def has(self, digest: str) -> bool:
        """Whether that template is there, with all its layers; it is pinned then."""
        self.pins.hold(digest)
        with suppress(StoreFailed):  # a damaged one is made again
            found = self._load(digest, digest)
            if found is not None and not self._lacking(found):
                return True
        self.pins.drop(digest)
        return False

    def list(self) -> tuple[Template, ...]:
        """The templates that have a name, sorted by it, without ``host``. What is damaged is told in the log."""
        found = []
        for name in self.names.known():
            try:
                found.append(self._load(self.names.digest_of(name), name))
            except UnknownTemplate:  # removed meanwhile
                continue
            except StoreFailed as damaged:
                log.warning("%s", damaged)
        return tuple(template for template in found if template is not None)

    def remove(self, name: str) -> None:
        """Removes a name, and with its last one the template and the layers that nothing else needs. What is written
        of it may be out of date, or unreadable.

        Raises ``UnknownTemplate``; ``InvalidInput`` if a live process has it pinned, or if it is given by its digest
        and has a name; everything is as it was then. Safe to repeat.
        """
        if name == host.NAME:
            raise InvalidInput(f"template {name!r} is made of this host and cannot be removed")
        try:
            digest = self.names.digest_of(name)
        except StoreFailed as damaged:
            log.warning("%s", damaged)
            self.names.drop(name)
            return
        layers = self._layers_of(digest, name)
        by_digest = DIGEST.fullmatch(name) is not None
        others = [known for known in self.names.known() if known != name and self.names.stand_for(known, digest)]
        if by_digest and others:
            raise InvalidInput(f"template {name}: it is called {', '.join(others)}; remove that name")
        if others:
            self.names.drop(name)
            return
        with self.pins.alone(digest) as alone:
            if not alone:
                raise InvalidInput(f"template {name!r}: a live process uses it; end that one first")
            if not by_digest:
                self.names.drop(name)
            if layers is None or digest not in self._needed():  # another name may have come meanwhile
                self._forget(digest)
        for layer in layers or ():
            self._remove_layer(layer)

    def collect(self) -> int:
        """Removes what dead makers left, templates that no name and no live process needs, and then such layers; how
        many things that were. Safe to repeat, to kill at any point, and beside makers and other collectors.
        """
        if not self.home.is_dir():
            return 0
        removed = self._sweep() + self._swept
        self._swept = 0
        needed = self._needed()
        for digest in self._recorded():
            if digest in needed:
                continue
            with self.pins.alone(digest) as alone:
                if alone and digest not in self._needed():
                    self._forget(digest)
                    removed += 1
        kept = self._layers_needed()
        removed += sum(self._remove_layer(layer) for layer in self.layers if layer not in kept)
        for kind in MEMOS:
            Memo(self.home, kind).sweep(self.layers.has if kind != "images" else lambda key: self._file(key).exists())
        for image in (self.home / MACHINES).glob("*.erofs"):
            if not self._file(image.stem).exists():
                image.unlink(missing_ok=True)  # a virtual machine that has it open keeps what it holds
                image.with_suffix(".lock").unlink(missing_ok=True)
        return removed

    def _sweep(self) -> int:
        """Removes what processes were making, writing or fetching that were killed; how many things that were."""
        home = self.home
        written = (home, home / "templates", home / "names", home / MACHINES, *(home / kind for kind in MEMOS))
        made = (home, home / MACHINES)
        swept = sum(map(sweep_unfinished, written)) + sum(sweep_workshops(each / "making") for each in made)
        return swept + fetched.sweep(home)

    def close(self) -> None:
        """Lets go of all that this object has pinned, when no sandbox of it is left. It can be used on."""
        self.pins.close()

    def _host(self) -> Template:
        """The ``host`` template, with a record like any other, so that it has a digest to be found by."""
        while True:
            template = host.resolve(self.layers)
            self.pins.hold(template.digest)
            root = template.layers[0].digest
            self.pins.hold(root)
            if self.layers.has(root):
                if not self._file(template.digest).exists():
                    self._record(template)
                return template
            self.pins.drop(root)  # collected before we held it

    def _record(self, template: Template) -> None:
        """Writes it down, when all that it refers to is there and pinned: a collector sees the record or the pin."""
        for layer in template.layers:
            if layer.digest:
                self.pins.hold(layer.digest)
                if not self.layers.has(layer.digest):
                    raise InvalidInput(f"template {template.name}: the store has no layer {layer.digest}")
        self.pins.hold(template.digest)
        bare = tuple(
            msgspec.structs.replace(layer, source="" if layer.digest else layer.source) for layer in template.layers
        )
        data = msgspec.json.encode(msgspec.structs.replace(template, layers=bare))
        file = self._file(template.digest)
        private_directory(self._templates)
        if not file.exists() or file.read_bytes() != data:
            write_atomically(file, data)

    def _file(self, digest: str) -> Path:
        return self._templates / f"{digest.removeprefix('sha256:')}.json"

    def _recorded(self) -> tuple[str, ...]:
        """The digests of all templates that are written down."""
        files = sorted(self._templates.glob("[0-9a-f]*.json")) if self._templates.is_dir() else []
        return tuple(f"sha256:{file.stem}" for file in files)

    def _load(self, digest: str, name: str) -> Template | None:
        file = self._file(digest)
        try:
            stored = msgspec.json.decode(file.read_bytes(), type=Template)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreFailed(f"template {name!r}: {file}: {error}; remove it and import it again") from error
        placed = self._placed(stored)
        return placed if DIGEST.fullmatch(name) else msgspec.structs.replace(placed, name=name)

    def _layers_of(self, digest: str, name: str) -> set[str] | None:
        """None if that cannot be read any more; `gc` finds them."""
        try:
            found = self._load(digest, name)
        except StoreFailed as broken:
            log.warning("%s", broken)
            return None
        if found is None and DIGEST.fullmatch(name):
            raise UnknownTemplate(name, self.names.known())
        if found is None:
            log.warning("template %r: what it stood for, %s, is not there any more", name, digest)
            return None
        return {layer.digest for layer in found.layers if layer.digest}

    def _lacking(self, template: Template) -> str:
        """The first of its layers that somebody removed by hand; empty if there is none."""
        return next((each.digest for each in template.layers if each.digest and not self.layers.has(each.digest)), "")

    def _placed(self, template: Template) -> Template:
        """With the host paths of its layers."""
        layers = tuple(
            msgspec.structs.replace(layer, source=str(self.layers.tree(layer.digest))) if layer.digest else layer
            for layer in template.layers
        )
        return msgspec.structs.replace(template, layers=layers)

    def _needed(self) -> set[str]:
        """The templates that have a name."""
        needed = {host.remembered_digest(self.home) or ""}
        for name in self.names.known():
            try:
                needed.add(self.names.digest_of(name))
            except UnknownTemplate:  # removed meanwhile
                continue
        return needed

    def _layers_needed(self) -> set[str]:
        """The layers of all templates that are written down."""
        templates = (self._load(digest, digest) for digest in self._recorded())
        return {layer.digest for template in templates if template is not None for layer in template.layers}

    def _remove_layer(self, layer: str) -> bool:
        return self.layers.remove(layer, lambda: layer in self._layers_needed())

    def _forget(self, digest: str) -> None:
        self._file(digest).unlink(missing_ok=True)
        sync_directory(self._templates)


def _over_facts(over: Template) -> dict[str, str]:
    """The template at the bottom, and how many of the layers are its own: they come last."""
    return {
        OVER: over.facts.get(OVER, over.digest),
        OVER_LAYERS: over.facts.get(OVER_LAYERS, str(len(over.layers))),
    }


def outdated(store: Store, template: Template) -> str:
    """Why no sandbox can be made of it any more; empty if one can. Directories of the host's are not the store's: what
    lies over them is good while they are as they were.
    """
    if template.name == host.NAME or all(layer.digest for layer in template.layers):
        return ""
    now, then = store.resolve(host.NAME).digest, template.facts.get(OVER)
    return "" if then == now else f"lies over this host as {then}, and that is {now} now: packages have changed"


def stands_for(name: str, template: Template) -> bool:
    """Whether ``name`` still means that template of this user's store, as far as one small file tells. Some
    microseconds; of ``host`` nothing is asked.
    """
    if name == host.NAME:
        return True
    return open_store().names.stand_for(name, template.digest)


def check_name(name: str) -> None:
    """Raises ``InvalidInput`` for what cannot be a template's name."""
    if not NAME.fullmatch(name) or ".." in name or DIGEST.fullmatch(name) or name == host.NAME:
        raise InvalidInput(f"template name {name!r}: 1 to 128 of a-z 0-9 . _ / -, no '..', not 'host', not a digest")


@functools.lru_cache(maxsize=8)
def _store_at(home: Path) -> Store:
    store = Store(home)
    try:
        if home.is_dir():
            store._swept = store._sweep()
    except PermissionError as error:
        raise StoreFailed(
            f"template store {home}: {error.strerror}; set PROOFBOX_HOME to a directory you own"
        ) from error
    return store


def open_store() -> Store:
    """The store of this user (see ``data_home``), the same object each time. Makes nothing until something is put in.

    What makers left that were killed is swept when a process opens the store for the first time. Raises
    ``StoreFailed`` where this user may not look.
    """
    return _store_at(data_home())
