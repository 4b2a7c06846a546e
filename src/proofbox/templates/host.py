"""The built-in template ``host``: a read-only view of the host's ``/usr`` below a generated root directory.

Nothing of the host's ``/home``, ``/root``, ``/run`` or ``/var`` (but the package database) is in it. Its digest covers
the distribution, the list of installed packages, the names and sizes of what ``/usr/local`` holds, and every file of
the generated root. ``/usr`` itself is not hashed: it is the host's, named by its package list.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from proofbox.errors import StoreFailed
from proofbox.host.home import locked, private_directory, write_atomically
from proofbox.host.idmap import find_ids
from proofbox.model.template import Layer, Template
from proofbox.templates import packages, skeleton
from proofbox.templates.layers import Layers
from proofbox.templates.unpack import Notes

NAME = "host"
FORMAT = 3
"""Changes with what is generated, so that a store made by another version is not taken for this one's."""

ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The template that was built last, and the state of the host's files that it was built from."""

    key: str
    watched: tuple[str, ...]
    template: Template


def resolve(layers: Layers, root: Path = Path("/")) -> Template:
    """The template of the host at ``root`` as it is now. Built if that changed since the last time, else quick.

    Any number of processes may call it: one builds, the others wait for it. Raises ``StoreFailed``.
    """
    home = layers.home
    record = home / f"{NAME}.json"
    remembered = _read(record)
    if remembered and _is_current(remembered, home):
        return remembered.template
    private_directory(home)
    try:
        with locked(home / f"{NAME}.lock"):
            remembered = _read(record)
            if remembered and _is_current(remembered, home):
                return remembered.template
            return _build(layers, root)
    except OSError as error:
        raise StoreFailed(f"template {NAME!r} in {home}: {error}") from error


def remembered_digest(home: Path) -> str | None:
    """The digest of the template that was built last; None if there is none."""
    remembered = _read(home / f"{NAME}.json")
    return remembered.template.digest if remembered else None


def _read(record: Path) -> Remembered | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_current(remembered: Remembered, home: Path) -> bool:
    source = remembered.template.layers[0].source
    return source.startswith(f"{home}/") and os.path.isdir(source) and _key(remembered.watched) == remembered.key


def _key(watched: Iterable[str]) -> str:
    """The state of the watched files by their inode, size and times; one that is missing is a state too."""
    total = hashlib.sha256(f"{FORMAT} {os.geteuid()} {find_ids().described()}".encode())
    for path in watched:
        try:
            found = os.lstat(path)
            total.update(
                f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns};".encode()
            )
        except OSError:
            total.update(b"-;")
    return total.hexdigest()


def _watched(root: Path) -> Iterator[str]:
    """What tells that a template is out of date. The package list, and each file and directory of the rest."""
    yield from (str(root / name) for name in (*packages.DATABASES, "etc/passwd", "etc/group", "usr", *skeleton.MERGED))
    yield from (str(path) for path in packages.directories(root / "usr/local"))
    yield from (str(root / name) for name in skeleton.COPIED if not name.startswith("var/"))
    yield from (str(root / pattern).split("*")[0].rpartition("/")[0] for pattern in skeleton.COPIED_PATTERNS)
    for source in skeleton.sources(root):
        if source.is_dir() and not source.is_symlink() and "var" not in source.parts:
            for directory, _, names in os.walk(source):
                yield directory
                paths = (os.path.join(directory, name) for name in names)
                yield from (path for path in paths if not os.path.islink(path))


def _build(layers: Layers, root: Path) -> Template:
    watched = tuple(dict.fromkeys(_watched(root)))
    key = _key(watched)  # before anything is read: what changes meanwhile is seen as a change the next time
    notes = Notes()

    def fill(tree: Path) -> Notes:
        for note in skeleton.build(root, tree):
            notes.add("left_out", os.fsencode(note))
        return notes

    digest = layers.put(fill)
    kept = Layer("/", str(layers.tree(digest)), digest)
    template = _describe(root, kept, notes)
    write_atomically(
        layers.home / f"{NAME}.json", msgspec.json.encode(Remembered(key=key, watched=watched, template=template))
    )
    return template


def _lines_digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _describe(root: Path, kept: Layer, notes: Notes) -> Template:
    installed = packages.package_list(root)
    facts = packages.distribution(root) | {
        "packages": str(len(installed)),
        "package_digest": _lines_digest(installed),
        "local_digest": _lines_digest(packages.listing(root / "usr/local")),
        "root_digest": kept.digest,
    }
    described = msgspec.json.encode([NAME, FORMAT, sorted(facts.items()), sorted(ENV.items())])
    return Template(
        digest=f"sha256:{hashlib.sha256(described).hexdigest()}",
        name=NAME,
        layers=(kept, *_mounted(root)),
        env=ENV,
        facts=facts | notes.facts(),
    )


def _mounted(root: Path) -> tuple[Layer, ...]:
    """What is shown of the host itself."""
    apart = [name for name in skeleton.MERGED if (root / name).is_dir() and not (root / name).is_symlink()]
    # An overlay shows one file system: what is mounted below /usr on the host needs a layer of its own.
    inside = sorted(f"usr/{path.name}" for path in (root / "usr").iterdir() if path.is_mount() and path.is_dir())
    return tuple(Layer(f"/{name}", str(root / name)) for name in ("usr", *apart, *inside))
