"""Images into the store: each layer unpacked once, each image pulled once, however many wait for it.

A layer is unpacked once for each *chain id* (image-spec, config.md: the diff ids up to it), for whose its
directories are can depend on the layers below.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import msgspec

from proofbox.errors import InvalidInput, StoreFailed
from proofbox.host.home import private_directory, reason, workshop
from proofbox.model.template import Template
from proofbox.templates import registry
from proofbox.templates.below import Below, is_opaque
from proofbox.templates.fetched import Fetched
from proofbox.templates.image import (
    Image,
    Manifest,
    Settings,
    environment,
    is_image,
    open_fetched,
    open_image,
)
from proofbox.templates.memo import Memo
from proofbox.templates.room import Room
from proofbox.templates.store import ENV, Store, check_name
from proofbox.templates.tar import unpack_layer, unpack_tar
from proofbox.templates.unpack import Notes


def import_path(
    store: Store,
    path: Path,
    name: str,
    *,
    reference: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Template:
    """Whatever it is: a root file system or an image, a directory or an archive of it.

    ``reference`` names one of several images; ``env`` goes over the image's environment, ``cwd`` instead of its own.
    Raises ``InvalidInput``, ``StoreFailed``; nothing is left then. Safe to repeat.
    """
    check_name(name)
    if path.is_dir():
        if is_image(set(os.listdir(path))):
            return _import_image(store, path, str(path), name, reference, env, cwd)
        return store.import_directory(path, name, env=env, cwd=cwd or "/")
    private_directory(store.home)
    with _failing(f"import of {path}", store), workshop(store.home / "making") as place:
        notes = unpack_tar(path, place / "tree")
        if is_image(set(os.listdir(place / "tree"))):
            return _import_image(store, place / "tree", str(path), name, reference, env, cwd)

        def move(tree: Path) -> Notes:
            mode = stat.S_IMODE((place / "tree").stat().st_mode)
            (place / "tree").chmod(0o700)  # who is not root may not move a directory that it could not write to
            (place / "tree").rename(tree)
            tree.chmod(mode)
            return notes

        return store.import_root(name, str(path), move, env, cwd or "/")


def _import_image(
    store: Store,
    top: Path,
    source: str,
    name: str,
    reference: str | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> Template:
    with _failing(f"import of {source}", store):
        image = open_image(top, reference)
        facts = {"source": source} | ({"reference": reference} if reference else {})
        return _keep(store, image, facts, name, env or {}, cwd)


def pull(store: Store, reference: str, name: str) -> Template:
    """The image of a registry that ``reference`` names now, for this machine, by skopeo.

    It is pulled once for each digest, and each of its blobs is fetched once: who asks meanwhile waits, who asks later
    gets what is there. How long it took is in its facts, ``pull_seconds`` and ``unpack_seconds``. In a thread it ends
    when the task that waits for it is cancelled. Raises ``InvalidInput``, ``Refused`` without skopeo, ``StoreFailed``
    if the registry does not give it; nothing is left then. Safe to repeat.
    """
    check_name(name)
    began = monotonic()
    found = registry.look_up(reference)
    asked = monotonic() - began
    memo = Memo(store.home, "images")
    with _failing(f"pull of {reference}", store), memo.alone(found.digest):
        known = memo.recall(found.digest)
        if known and store.has(known):
            return _known_by(store.tag(name, known), store, reference)
        wanted = [layer.digest for layer in found.manifest.layers]
        with Fetched(store.home, wanted) as blobs, workshop(store.home / "making") as place:
            began = monotonic()
            image, count = _fetched(found, place, blobs, wanted[_had(store, found.manifest) :])
            took = monotonic() - began + asked
            facts = {
                "source": f"docker://{found.reference}",
                "reference": reference,
                "index_digest": found.index,
                "pull_seconds": f"{took:.3f}",
                "layers_pulled": f"{count} of {len(image.blobs)}",
                "mutable": moving(reference),
            }
            template = _keep(store, image, {key: value for key, value in facts.items() if value}, name, {}, None)
        memo.remember(found.digest, template.digest)
        return template


def moving(reference: str) -> str:
    """Why that may be another image later; empty for a reference with a digest."""
    return "" if "@" in reference else f"{reference}: a tag, which may stand for another image later"


def _known_by(found: Template, store: Store, reference: str) -> Template:
    """The same; that a tag led to it is on record, also where it was first asked for by its digest."""
    if "mutable" in found.facts or not moving(reference):
        return found
    layers = [(layer.target, layer.digest) for layer in found.layers]
    facts = found.facts | {"mutable": moving(reference)}
    return store.put_template(layers, env=found.env, cwd=found.cwd, user=found.user, facts=facts, name=found.name)


def _had(store: Store, manifest: Manifest) -> int:
    """How many of its layers, from the lowest on, are in the store, for this image; pinned. Known by what blobs held
    that were unpacked here before.
    """
    blobs, layers = Memo(store.home, "blobs"), Memo(store.home, "unpacked")
    chain = ""
    for number, descriptor in enumerate(manifest.layers):
        _, _, diff = (blobs.recall(descriptor.digest) or "").partition(" ")
        if not diff:
            return number
        chain = _chained(chain, f"sha256:{diff}")
        layer = layers.recall(chain)
        if layer is None:
            return number
        store.pins.hold(layer)
        if not store.layers.has(layer):
            return number
    return len(manifest.layers)


def _fetched(found: registry.Named, place: Path, blobs: Fetched, missing: list[str]) -> tuple[Image, int]:
    """The image, with the blobs of those layers there, and how many of these were fetched for it."""
    room = Room.whole(f"pull of {found.reference}")
    sizes = {layer.digest: max(0, layer.size) for layer in found.manifest.layers}
    copied: list[Path] = []

    def fetch(digests: Sequence[str]) -> Path:
        room.take(sum(sizes[digest] for digest in digests))
        copied.append(registry.copy(found, place / str(len(copied)), digests))
        return copied[-1]

    count = blobs.bring(missing, fetch)
    if not copied:
        fetch(())
    return open_fetched(copied[0], found.digest, found.manifest, blobs.path), count


def _chained(chain: str, diff: str) -> str:
    return f"sha256:{hashlib.sha256(f'{chain} {diff}'.encode()).hexdigest()}" if chain else diff


def _keep(
    store: Store, image: Image, facts: dict[str, str], name: str, env: Mapping[str, str], cwd: str | None
) -> Template:
    began = monotonic()
    layers = _unpack(store, image)
    notes: dict[str, str] = {}
    for layer in layers:
        notes |= store.layers.record(layer).notes
    settings = image.settings
    told = described(settings) | {
        "image_digest": image.digest,
        "config_digest": image.config_digest,
        "architecture": image.config.architecture,
        "created": image.config.created or "",
        "unpack_seconds": f"{monotonic() - began:.3f}",
    }
    return store.put_template(
        [("/", layer) for layer in reversed(layers)],
        env=environment(settings, ENV) | dict(env),
        cwd=cwd or posixpath.normpath(posixpath.join("/", settings.working_dir)),
        user=settings.user or "root",
        facts={key: value for key, value in (notes | told | facts).items() if value},
        name=name,
    )


def described(settings: Settings) -> dict[str, str]:
    """What an image says and no sandbox obeys, for the record: as JSON, as it came."""
    told = {
        "entrypoint": settings.entrypoint,
        "cmd": settings.cmd,
        "shell": settings.shell,
        "labels": settings.labels,
        "exposed_ports": sorted(settings.exposed_ports or {}),
        "healthcheck": settings.healthcheck,
        "stop_signal": settings.stop_signal,
        "onbuild": settings.on_build,
    }
    return {key: msgspec.json.encode(value).decode() for key, value in told.items() if value}


def _unpack(store: Store, image: Image) -> list[str]:
    """The digests of its layers, the lowest first, without those that say nothing; all pinned."""
    layers: list[str] = []
    room = Room.whole()
    chain = ""
    for number, diff in enumerate(image.config.rootfs.diff_ids):
        chain = _chained(chain, diff)
        layer = _unpacked(store, chain, image, number, layers, room)
        tree = store.layers.tree(layer)
        if is_opaque(tree):
            layers = []  # an overlay does not look for the mark at the root
        if os.listdir(tree) or not layers:
            layers.append(layer)
    return layers


def _unpacked(store: Store, chain: str, image: Image, number: int, below: list[str], room: Room) -> str:
    memo = Memo(store.home, "unpacked")
    with memo.alone(chain):
        if known := memo.recall(chain):
            store.pins.hold(known)
            if store.layers.has(known):
                return known
        trees = Below([store.layers.tree(layer) for layer in reversed(below)])
        diff = image.config.rootfs.diff_ids[number]

        def fill(tree: Path) -> Notes:
            with image.layer(number) as blob:
                return unpack_layer(blob, f"layer {number + 1} of {image.digest}", diff, tree, trees, room)

        layer = store.put_layer(fill)
        memo.remember(chain, layer)
        if blob := image.blobs[number][1]:
            held = Memo(store.home, "blobs")
            with held.alone(blob):
                held.remember(blob, f"{layer} {diff.removeprefix('sha256:')}")
        return layer


@contextmanager
def _failing(what: str, store: Store) -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except OSError as error:
        raise StoreFailed(f"{what} into {store.home}: {reason(error)}") from error
