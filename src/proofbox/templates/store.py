"""The content store: templates by digest, names that point to them.

    HOME/layers/<64 hex>/tree            the root directory of one template, never changed once it has this name
    HOME/layers/<64 hex>/template.json   what else belongs to it: environment, working directory, user, facts
    HOME/names/<name>                    the digest that the name stands for
    HOME/pins/<64 hex>                   lock file: held shared by every process that uses the template
    HOME/making/                         what is being made; swept when its maker is dead
    HOME/host.json, host.lock            the built-in ``host`` template, see ``host.py``

Everything gets its final name by one rename. All calls block: an async caller runs them in a thread.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from proofbox.errors import InvalidInput, StoreFailed, UnknownTemplate
from proofbox.model.template import Layer, Template
from proofbox.templates import host
from proofbox.templates.home import data_home, private_directory, sweep_workshops, workshop, write_atomically
from proofbox.templates.tree import tree_digest
from proofbox.templates.unpack import Notes, copy_directory, unpack_tar

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Store:
    """One store. Any number of processes and threads may use the same directory at once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._layers, self._names = home / "layers", home / "names"
        self._pins: dict[str, int] = {}
        self._pinning = threading.Lock()

    def resolve(self, name: str) -> Template:
        """The template with that name or digest (``host`` is always there), pinned: nobody can remove it while we live.

        Raises ``UnknownTemplate``, and ``StoreFailed`` if the store cannot be read or ``host`` cannot be built.
        """
        if name == host.NAME:
            template = host.resolve(self.home)
            self._pin(template.digest)
            return template
        digest = self._digest_of(name)
        self._pin(digest)
        found = self._load(digest, name)
        if found is None:
            self._unpin(digest)
            raise UnknownTemplate(name, self._known())
        return found

    def import_directory(
        self, source: Path, name: str, *, env: dict[str, str] | None = None, cwd: str = "/"
    ) -> Template:
        """Copies a root file system; nobody may change it meanwhile. The same tree has the same digest.

        Raises ``InvalidInput`` for a bad name or source, ``StoreFailed``; nothing is left then. Safe to repeat.
        """
        if not source.is_dir():
            raise InvalidInput(f"import of {source}: not a directory")
        return self._import(name, str(source), lambda tree: copy_directory(source, tree), env, cwd)

    def import_tar(self, source: Path, name: str, *, env: dict[str, str] | None = None, cwd: str = "/") -> Template:
        """Unpacks a root file system from a tar (plain, .gz, .bz2, .xz, .zst). Otherwise as ``import_directory``."""
        if not source.is_file():
            raise InvalidInput(f"import of {source}: not a file")
        return self._import(name, str(source), lambda tree: unpack_tar(source, tree), env, cwd)

    def list(self) -> tuple[Template, ...]:
        """The templates that have a name, sorted by it, without ``host``."""
        found = (self._load(self._digest_of(name), name) for name in self._known())
        return tuple(template for template in found if template is not None)

    def remove(self, name: str) -> None:
        """Removes a name, and the template itself with its last one. Raises ``UnknownTemplate``.

        Raises ``InvalidInput`` if a live process has it pinned; everything is as it was then. Safe to repeat.
        """
        digest = self._digest_of(name)
        if not self._layer(digest).is_dir():
            raise UnknownTemplate(name, self._known())
        others = [known for known in self._known() if known != name and self._digest_of(known) == digest]
        if not others:
            self._remove_layer(digest, name)
        if not DIGEST.fullmatch(name):
            self._name_file(name).unlink(missing_ok=True)

    def collect(self) -> int:
        """Removes what dead makers left, and templates that no name and no live process needs; how many."""
        if not self.home.is_dir():
            return 0
        removed = sweep_workshops(self.home / "making")
        needed = {self._digest_of(name) for name in self._known()}
        if current := host.remembered_digest(self.home):
            needed.add(current)
        for layer in sorted(self._layers.iterdir()) if self._layers.is_dir() else []:
            digest = f"sha256:{layer.name}"
            if DIGEST.fullmatch(digest) and digest not in needed:
                try:
                    self._remove_layer(digest, digest)
                    removed += 1
                except InvalidInput:
                    continue
        return removed

    def close(self) -> None:
        """Lets go of every template that this object has pinned, when no sandbox of them is left. It can be used on."""
        with self._pinning:
            while self._pins:
                os.close(self._pins.popitem()[1])

    def _import(
        self, name: str, source: str, fill: Callable[[Path], Notes], env: dict[str, str] | None, cwd: str
    ) -> Template:
        if not NAME.fullmatch(name) or ".." in name or DIGEST.fullmatch(name) or name == host.NAME:
            raise InvalidInput(
                f"template name {name!r}: 1 to 128 of a-z 0-9 . _ / -, no '..', not 'host', not a digest"
            )
        environment = {"PATH": PATH} if env is None else dict(env)
        private_directory(self.home)
        try:
            with workshop(self.home / "making") as place:
                notes = fill(place / "tree")
                root_digest = tree_digest(place / "tree")
                about = msgspec.json.encode(["tree", 1, root_digest, sorted(environment.items()), cwd])
                digest = f"sha256:{hashlib.sha256(about).hexdigest()}"
                facts = {"source": source, "root_digest": root_digest} | notes.facts()
                template = Template(digest=digest, name=name, layers=(), env=environment, cwd=cwd, facts=facts)
                self._pin(digest)
                self._keep(place, template)
            self._name(name, digest)
        except OSError as error:
            raise StoreFailed(f"import of {source} as {name!r} into {self.home}: {error}") from error
        kept = self._load(digest, name)
        if kept is None:
            raise StoreFailed(
                f"import of {source} as {name!r}: {self._layer(digest)} was removed meanwhile; import it again"
            )
        return kept

    def _keep(self, place: Path, template: Template) -> None:
        """Gives what was made its final name; another maker may have been faster with the same content."""
        (place / "template.json").write_bytes(msgspec.json.encode(template))
        private_directory(self._layers)
        try:
            place.rename(self._layer(template.digest))
        except OSError:
            if not (self._layer(template.digest) / "template.json").is_file():
                raise

    def _name(self, name: str, digest: str) -> None:
        private_directory(self._names)
        write_atomically(self._name_file(name), f"{digest}\n".encode())

    def _name_file(self, name: str) -> Path:
        return self._names / name.replace("/", "%")

    def _known(self) -> tuple[str, ...]:
        if not self._names.is_dir():
            return ()
        return tuple(sorted(n.name.replace("%", "/") for n in self._names.iterdir() if not n.name.startswith(".")))

    def _layer(self, digest: str) -> Path:
        return self._layers / digest.removeprefix("sha256:")

    def _digest_of(self, name: str) -> str:
        """The digest that a name stands for. Raises ``UnknownTemplate``."""
        if found := DIGEST.fullmatch(name):
            return f"sha256:{found[1]}"
        try:
            text = self._name_file(name).read_text() if NAME.fullmatch(name) else ""
        except (FileNotFoundError, NotADirectoryError):
            text = ""
        except OSError as error:
            raise StoreFailed(f"template {name!r} in {self.home}: {error}") from error
        if not DIGEST.fullmatch(text.strip()):
            raise UnknownTemplate(name, self._known())
        return text.strip()

    def _load(self, digest: str, name: str) -> Template | None:
        layer = self._layer(digest)
        try:
            stored = msgspec.json.decode((layer / "template.json").read_bytes(), type=Template)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreFailed(
                f"template {name!r}: {layer / 'template.json'}: {error}; remove it and import it again"
            ) from error
        layers = stored.layers or (Layer("/", str(layer / "tree")),)
        return msgspec.structs.replace(stored, layers=layers, name=stored.name if DIGEST.fullmatch(name) else name)

    def _pin(self, digest: str) -> None:
        """Holds the template for the rest of this process, however it ends. Waits for a removal that is under way."""
        with self._pinning:
            if digest in self._pins:
                return
            try:
                lock = self._open_pin(digest)
                fcntl.flock(lock, fcntl.LOCK_SH)
            except OSError as error:
                raise StoreFailed(f"template {digest} in {self.home}: {error}") from error
            self._pins[digest] = lock

    def _unpin(self, digest: str) -> None:
        with self._pinning:
            if digest in self._pins:
                os.close(self._pins.pop(digest))

    def _open_pin(self, digest: str) -> int:
        path = private_directory(self.home / "pins") / digest.removeprefix("sha256:")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _remove_layer(self, digest: str, name: str) -> None:
        lock = self._open_pin(digest)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise InvalidInput(f"template {name!r}: a live process uses it; end that one first") from None
        try:
            with workshop(self.home / "making") as place:
                # Out of sight in one step; the workshop removes it, or whoever sweeps after us.
                self._layer(digest).rename(place / "removed")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreFailed(f"removal of template {name!r} from {self.home}: {error}") from error
        finally:
            os.close(lock)


@functools.lru_cache(maxsize=8)
def _store_at(home: Path) -> Store:
    store = Store(home)
    if home.is_dir():
        sweep_workshops(home / "making")
    return store


def open_store() -> Store:
    """The store of this user (see ``data_home``), the same object each time. Makes nothing until something is put in.

    What makers left that were killed is swept when a process opens the store for the first time.
    """
    return _store_at(data_home())
