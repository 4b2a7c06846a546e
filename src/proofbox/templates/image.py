"""Images as the Open Container Initiative lays them out, as ``docker save`` packs them, as skopeo copies them: read,
and each digest checked.

The source is hostile. A document is read whole only up to a limit, a blob only if its digest is the one that led to it,
and paths in it are names of blobs, never paths of the host.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from proofbox.errors import InvalidInput
from proofbox.kit.newtree import split

DOCUMENT_MOST: Final = 8 << 20
"""Bytes of an index, a manifest or a configuration. Registries take manifests of at most 4 MiB."""

LAYERS_MOST: Final = 180
"""What the runtimes stack, with room for layers of steps on top."""

LAYOUT: Final = "blobs/sha256/{hex}"
"""Where a layout has its blobs."""

DEPTH_MOST: Final = 4
"""Indexes in indexes."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_LAYERS: Final = re.compile(
    r"application/vnd\.(oci\.image\.layer(\.nondistributable)?\.v1\.tar([+]gzip|[+]zstd)?"
    r"|docker\.image\.rootfs\.(foreign\.)?diff\.tar(\.gzip|\.zstd)?)"
)
_MACHINES: Final = {
    "x86_64": ("amd64", ""),
    "aarch64": ("arm64", "v8"),
    "armv7l": ("arm", "v7"),
    "i686": ("386", ""),
    "ppc64le": ("ppc64le", ""),
    "s390x": ("s390x", ""),
    "riscv64": ("riscv64", ""),
}
Document = TypeVar("Document")
_REFERENCE: Final = "org.opencontainers.image.ref.name"
_WHOLE_NAME: Final = "io.containerd.image.name"
"""Docker's, in an archive of ``docker save``; the reference there is the tag alone."""
_USUAL: Final = re.compile(r"docker\.io/(library/)?")
"""What a user does not write."""


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, as Go names it."""

    architecture: str = ""
    os: str = ""
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename={"media_type": "mediaType"}):
    """What refers to a blob."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class Index(msgspec.Struct, frozen=True, rename={"media_type": "mediaType"}):
    """Several images, of which one is for this machine."""

    manifests: tuple[Descriptor, ...]
    media_type: str = ""


class Manifest(msgspec.Struct, frozen=True, rename={"media_type": "mediaType"}):
    """One image: its configuration and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    media_type: str = ""


class Settings(msgspec.Struct, frozen=True, rename="pascal"):
    """What a container of the image starts with."""

    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    working_dir: str = ""
    user: str = ""
    labels: dict[str, str] | None = None
    shell: tuple[str, ...] | None = None
    exposed_ports: dict[str, Any] | None = None
    healthcheck: dict[str, Any] | None = None
    stop_signal: str = ""
    on_build: tuple[str, ...] | None = None


class RootFs(msgspec.Struct, frozen=True):
    """The digests of the unpacked layers, the lowest first."""

    diff_ids: tuple[str, ...]
    type: str = "layers"


class Config(msgspec.Struct, frozen=True):
    """An image's configuration."""

    rootfs: RootFs
    config: Settings | None = None
    architecture: str = ""
    os: str = ""
    variant: str = ""
    created: str | None = None


class Saved(msgspec.Struct, frozen=True, rename="pascal"):
    """One image in the ``manifest.json`` of an archive of ``docker save``."""

    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """One image for this machine, described; its layers are read when they are unpacked.

    ``blobs``: for each layer, the lowest first, the file and the digest that it must have ("" where only the diff id is
    known). ``digest``: of the manifest, or of the configuration where there is no manifest.
    """

    digest: str
    config: Config
    config_digest: str
    blobs: tuple[tuple[Path, str], ...]

    @property
    def settings(self) -> Settings:
        """Never None."""
        return self.config.config or Settings()

    @contextmanager
    def layer(self, number: int) -> Iterator[IO[bytes]]:
        """That layer's blob, checked. Raises ``InvalidInput``."""
        path, digest = self.blobs[number]
        with _opened(path) as file:
            if digest and (seen := _sum(file)) != digest:
                raise InvalidInput(f"import of layer {number + 1}: blob {path} has the digest {seen}, not {digest}")
            file.seek(0)
            yield file


def open_image(top: Path, reference: str | None = None) -> Image:
    """The image for this machine in the directory of an OCI image layout or of an unpacked ``docker save``.

    ``reference`` chooses one of several: a tag or name as the layout has it. Raises ``InvalidInput``, and ``OSError``.
    """
    if (top / "index.json").exists() and (top / "oci-layout").exists():
        return _from_layout(top, reference)
    if (top / "manifest.json").exists():
        return _from_saved(top, reference)
    raise InvalidInput(f"import of {top}: neither an OCI image layout (oci-layout, index.json) nor of `docker save`")


def open_fetched(place: Path, digest: str, manifest: Manifest, layer: Callable[[str], Path]) -> Image:
    """The image with this manifest, of that digest. Its configuration lies in ``place`` by its 64 hex digits, the blobs
    of its layers where ``layer`` says.
    """
    image = _from_manifest(place, "{hex}", digest, manifest)
    return replace(image, blobs=tuple((layer(blob), blob) for _, blob in image.blobs))


def is_image(names: set[str]) -> bool:
    """Whether a directory or archive with these names at its top is an image, and not a root file system."""
    return {"oci-layout", "index.json"} <= names or ("manifest.json" in names and not names & {"bin", "etc", "usr"})


def architecture() -> tuple[str, str]:
    """This machine's, and its variant, as images name them."""
    return _MACHINES.get(platform.machine(), (platform.machine(), ""))


def is_for_us(platform: str) -> bool:
    """Whether a platform as ``linux/amd64`` or ``linux/arm64/v8``, by any of its usual names, is this machine's."""
    own, ours = architecture()
    system, _, rest = platform.lower().partition("/")
    if not rest and system != "linux":
        system, rest = "linux", system
    machine, _, variant = rest.partition("/")
    machine, usual = _MACHINES.get(machine.replace("x86-64", "x86_64"), (machine, ""))
    return system == "linux" and machine in ("", own) and (variant or usual) in ("", ours)


def pick(descriptors: tuple[Descriptor, ...], what: str) -> Descriptor:
    """The descriptor for this machine. One alone without a platform will do: its configuration says what it is for."""
    own, variant = architecture()
    known = [(one, one.platform) for one in descriptors if one.platform is not None]
    ours = [(one, on) for one, on in known if (on.os, on.architecture) == ("linux", own)]
    best = [one for one, on in ours if on.variant in ("", variant)] or [one for one, _ in ours]
    if best:
        return best[0]
    if len(descriptors) == 1 and not known:
        return descriptors[0]
    offered = ", ".join(sorted({f"{on.os}/{on.architecture}" for _, on in known})) or "none that is named"
    raise InvalidInput(f"import of {what}: no image for linux/{own} in it (it has: {offered})")


def manifest_of(data: bytes, what: str) -> Index | Manifest:
    """A manifest or an index of them, by what it says it is, or by its form where it does not say. ``InvalidInput``,
    also where it names a blob by anything but a digest: what it names becomes names of files.
    """
    head = decode(data, dict[str, Any], what)
    kind = head.get("mediaType", "")
    if kind in _INDEXES or (not kind and "manifests" in head):
        return decode(data, Index, what)
    if kind in _MANIFESTS or (not kind and "layers" in head):
        manifest = decode(data, Manifest, what)
        for blob in (manifest.config, *manifest.layers):
            if not _DIGEST.fullmatch(blob.digest):
                raise InvalidInput(f"import of {what}: the digest {blob.digest!r} is not sha256: and 64 hex digits")
        return manifest
    named = kind or f"schema version {head.get('schemaVersion')}"
    raise InvalidInput(f"import of {what}: a manifest of the kind {named!r}, which is not one of an image")


def decode(data: bytes, kind: type[Document], what: str) -> Document:
    """Raises ``InvalidInput`` for what is not such a document."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"import of {what}: {error}") from error


def environment(settings: Settings, default: Mapping[str, str]) -> dict[str, str]:
    """The image's environment; a usual PATH where it has none, as engines do."""
    pairs = (text.partition("=") for text in settings.env or ())
    return {"PATH": default["PATH"]} | {name: value for name, _, value in pairs if name}


def _from_layout(top: Path, reference: str | None) -> Image:
    layout = decode(_document(top / "oci-layout"), dict[str, Any], f"{top}/oci-layout")
    if not str(layout.get("imageLayoutVersion", "")).startswith("1."):
        raise InvalidInput(f"import of {top}: image layout version {layout.get('imageLayoutVersion')!r}, not 1.x")
    manifests = decode(_document(top / "index.json"), Index, f"{top}/index.json").manifests
    chosen = _referenced(manifests, reference, str(top))
    for _ in range(DEPTH_MOST):
        descriptor = pick(chosen, str(top)) if len(chosen) > 1 or chosen[0].platform else chosen[0]
        data = _blob(top, LAYOUT, descriptor)
        found = manifest_of(data, descriptor.digest)
        if isinstance(found, Manifest):
            return _from_manifest(top, LAYOUT, descriptor.digest, found)
        chosen = found.manifests
    raise InvalidInput(f"import of {top}: more than {DEPTH_MOST} indexes in one another")


def _referenced(manifests: tuple[Descriptor, ...], reference: str | None, what: str) -> tuple[Descriptor, ...]:
    """All with one name, which are for several platforms."""
    if not manifests:
        raise InvalidInput(f"import of {what}: an image layout without an image")
    called = [(_names(one), one) for one in manifests]
    meant = [(names, one) for names, one in called if reference is None or reference in names]
    offered = ", ".join(sorted({names[0] for names, _ in meant or called}))
    if not meant:
        raise InvalidInput(f"import of {what}: no image {reference!r} in it (it has: {offered})")
    if len({names[0] for names, _ in meant}) > 1:
        raise InvalidInput(f"import of {what}: several images ({offered}); name one of them")
    return tuple(one for _, one in meant)


def _names(one: Descriptor) -> tuple[str, ...]:
    """What an image of a layout can be called by, the most exact one first."""
    said = one.annotations or {}
    tag, whole = said.get(_REFERENCE, ""), said.get(_WHOLE_NAME, "")
    return (_USUAL.sub("", whole, count=1), whole, tag) if whole else (tag,)


def _from_manifest(top: Path, place: str, digest: str, manifest: Manifest) -> Image:
    for layer in manifest.layers:
        if not _LAYERS.fullmatch(layer.media_type):
            raise InvalidInput(f"import of {digest}: a layer of the kind {layer.media_type!r}, not a tar archive")
    config = decode(_blob(top, place, manifest.config), Config, manifest.config.digest)
    blobs = tuple((_blob_path(top, place, layer.digest), layer.digest) for layer in manifest.layers)
    return _checked(Image(digest, config, manifest.config.digest, blobs))


def _from_saved(top: Path, reference: str | None) -> Image:
    images: tuple[Saved, ...] = decode(_document(top / "manifest.json"), tuple[Saved, ...], f"{top}/manifest.json")
    named = [one for one in images if reference is None or reference in (one.repo_tags or ())]
    if len(named) != 1:
        tags = ", ".join(tag for one in images for tag in one.repo_tags or ("untagged",))
        raise InvalidInput(
            f"import of {top}: {len(named)} images match {reference!r} (it has: {tags}); name one of them"
        )
    saved = named[0]
    data = _document(_inside(top, saved.config))
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    # Its file is named by its digest, with or without an ending, by whoever saved it.
    if digest.removeprefix("sha256:") != Path(saved.config).name.removesuffix(".json"):
        raise InvalidInput(f"import of {top}: configuration {saved.config} has the digest {digest}")
    blobs = tuple((_inside(top, name), "") for name in saved.layers)
    return _checked(Image(digest, decode(data, Config, saved.config), digest, blobs))


def _checked(image: Image) -> Image:
    ids = image.config.rootfs.diff_ids
    if len(ids) != len(image.blobs) or not ids or len(ids) > LAYERS_MOST:
        raise InvalidInput(
            f"import of {image.digest}: {len(image.blobs)} layers and {len(ids)} diff ids; "
            f"both must be as many, and 1 to {LAYERS_MOST}"
        )
    for digest in ids:
        if not _DIGEST.fullmatch(digest):
            raise InvalidInput(f"import of {image.digest}: the diff id {digest!r} is not sha256: and 64 hex digits")
    if image.config.os not in ("linux", ""):
        raise InvalidInput(f"import of {image.digest}: an image for {image.config.os!r}, not for linux")
    own, _ = architecture()
    if image.config.architecture not in (own, ""):
        made = image.config.architecture
        raise InvalidInput(f"import of {image.digest}: an image for {made!r}, but this host is {own!r}")
    return image


def _blob(top: Path, place: str, descriptor: Descriptor) -> bytes:
    data = _document(_blob_path(top, place, descriptor.digest))
    seen = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if seen != descriptor.digest or len(data) != descriptor.size:
        raise InvalidInput(f"import of {top}: blob {descriptor.digest} has the digest {seen} and {len(data)} bytes")
    return data


def _blob_path(top: Path, place: str, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise InvalidInput(f"import of {top}: the digest {digest!r} is not sha256: and 64 hex digits")
    return _inside(top, place.format(hex=digest.removeprefix("sha256:")))


def _inside(top: Path, name: str) -> Path:
    """A file of the image. Old archives link one layer to another; a link that leads out of the image is refused."""
    path = top.joinpath(*map(os.fsdecode, split(os.fsencode(name))))
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(top)):
        raise InvalidInput(f"import of {top}: {name!r} leads out of the image")
    return Path(os.path.realpath(path))


def _document(path: Path) -> bytes:
    with _opened(path) as file:
        data = file.read(DOCUMENT_MOST + 1)
    if len(data) > DOCUMENT_MOST:
        raise InvalidInput(f"import: {path} has more than {DOCUMENT_MOST} bytes")
    return data


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(f"import: {path}: {error.strerror}") from error
    with open(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise InvalidInput(f"import: {path} is not a file")
        yield opened


def _sum(file: IO[bytes]) -> str:
    return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"  # type: ignore[arg-type] # it is a real file
