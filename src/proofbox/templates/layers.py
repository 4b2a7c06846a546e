"""The layers of the store: directories by the digest of what they hold, in the form that an overlay stacks.

    HOME/trees/<64 hex>/tree         one layer, never changed once it has this name
    HOME/trees/<64 hex>/layer.json   what was noted when it was made

A layer says what it removes from those below it: a *whiteout* is a character device 0:0 in place of a file or directory
that is gone, an *opaque* directory carries ``user.overlay.opaque`` and hides what the same directory held below. (Not
``trusted.``: a sandbox mounts its overlay in its own user namespace.) Made by root, owners are ids as the sandbox sees
them, 0 to 65535; they are mapped where the layer is mounted. Made by another user, everything belongs to that user, who
is root inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from proofbox.errors import StoreFailed
from proofbox.host.home import private_directory, reason, workshop
from proofbox.kit.durable import sync_directory, sync_file_system
from proofbox.templates.pins import Pins
from proofbox.templates.tree import tree_digest
from proofbox.templates.unpack import Notes


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept beside a layer's tree. ``notes``: what is not as it was in its source, see ``Notes.facts``."""

    version: int = 1
    digest: str
    notes: dict[str, str]


class Layers:
    """The layers of one store. Any number of processes and threads may use the same directory at once."""

    def __init__(self, home: Path, pins: Pins) -> None:
        self.home = home
        self.pins = pins
        self._trees = home / "trees"

    def put(self, fill: Callable[[Path], Notes], *, read_back: bool = False) -> str:
        """Keeps what ``fill`` makes at the path that it is given (which is not there yet); the layer's digest.

        ``read_back``: when it is on the disk it is read from there, and kept only if its digest is the same. The same
        content gives the same digest, whoever makes it, and is kept once. It is durable and pinned when this
        returns. Raises ``StoreFailed`` and what ``fill`` raises; nothing is left then. Safe to repeat. It blocks for as
        long as it takes to write the tree to the disk.
        """
        private_directory(self.home)
        try:
            with workshop(self.home / "making") as place:
                notes = fill(place / "tree")
                digest = f"sha256:{tree_digest(place / 'tree')}"
                self.pins.hold(digest)
                if not self.has(digest):
                    if read_back:
                        self._compare(place, digest)
                    self._keep(place, LayerRecord(digest=digest, notes=notes.facts()))
        except OSError as error:
            raise StoreFailed(f"layer in {self.home}: {reason(error)}") from error
        return digest

    def tree(self, digest: str) -> Path:
        """Where it is, or would be."""
        return self._trees / digest.removeprefix("sha256:") / "tree"

    def has(self, digest: str) -> bool:
        """Whether it is there. It stays so only if it is pinned, or a template that is pinned or named has it."""
        return self.tree(digest).is_dir()

    def record(self, digest: str) -> LayerRecord:
        """What was noted about it. Raises ``StoreFailed``."""
        path = self.tree(digest).with_name("layer.json")
        try:
            return msgspec.json.decode(path.read_bytes(), type=LayerRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreFailed(f"layer {path}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        """The digests of all that are there, sorted."""
        names = sorted(entry.name for entry in self._trees.iterdir()) if self._trees.is_dir() else []
        return (f"sha256:{name}" for name in names)

    def remove(self, digest: str, needed: Callable[[], bool]) -> bool:
        """Removes it unless a live process has it pinned or ``needed()``, which is asked when nobody can pin it."""
        with workshop(self.home / "making") as place, self.pins.alone(digest) as alone:
            # Out of sight in one step; the workshop removes it for good, or whoever sweeps after us.
            return alone and not needed() and self._moved(digest, place / "removed")

    def _compare(self, place: Path, digest: str) -> None:
        sync_file_system(place)
        found = f"sha256:{tree_digest(place / 'tree', cold=True)}"
        if found != digest:
            raise StoreFailed(
                f"layer in {self.home}: written was {digest}, and read back from the disk it is {found}; nothing of it "
                "was kept. The disk, its controller or this machine's memory is broken, or somebody writes to the store"
            )

    def _keep(self, place: Path, record: LayerRecord) -> None:
        """Gives what was made its final name; another maker may be faster with the same content."""
        (place / "layer.json").write_bytes(msgspec.json.encode(record))
        sync_file_system(place)
        private_directory(self._trees)
        try:
            place.rename(self.tree(record.digest).parent)
        except OSError:
            if self.has(record.digest):
                return
            with workshop(self.home / "making") as aside:
                self._moved(record.digest, aside / "broken")  # somebody emptied it; whole ones are never touched
            place.rename(self.tree(record.digest).parent)
        sync_directory(self._trees)

    def _moved(self, digest: str, target: Path) -> bool:
        try:
            self.tree(digest).parent.rename(target)
        except FileNotFoundError:
            return False
        sync_directory(self._trees)
        return True
