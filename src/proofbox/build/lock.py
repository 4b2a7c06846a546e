"""What a template holds, written down: packages and their versions, layers, the digest of what a sandbox sees."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from proofbox.host.idmap import find_ids
from proofbox.host.subids import run_module_inside
from proofbox.kit.newtree import Parts
from proofbox.model.template import Layer, Template
from proofbox.templates.packages import stanzas
from proofbox.templates.tree import OVERLAY, attributes, content_digest, listing
from proofbox.templates.view import View, names_of

PYTHON: Final = ("usr/lib", "usr/local/lib", "opt", "root", "home", "app", "venv", ".venv")
"""Where installed Python packages are looked for; elsewhere one is a directory like any other."""

_INSTALLED: Final = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-/]+)\.(dist-info|egg-info)")
_DEPTH: Final = 12


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """A template, written down. ``tree``: the digest of all that a sandbox of it sees.

    Where it lies over directories of the host, as that of ``host`` does, this is what was there when it was written.
    """

    version: int = 1
    template: str
    name: str
    layers: tuple[str, ...]
    tree: str
    dpkg: dict[str, str]
    apk: dict[str, str]
    python: dict[str, str]
    """Name and version; of one that is there more than once all versions."""
    mutable: str = ""


class _Seen(msgspec.Struct, frozen=True):
    tree: str
    dpkg: dict[str, str]
    apk: dict[str, str]
    python: dict[str, str]


def lock(template: Template) -> Lock:
    """Reads all of it, and runs nothing; it was resolved. Raises ``OSError``. 5 GB of ``host`` took 12 s."""
    seen = _seen(template.layers) if os.geteuid() == 0 else _seen_inside(template.layers)
    return Lock(
        template=template.digest,
        name=template.name,
        layers=tuple(layer.digest or f"host:{layer.source}" for layer in template.layers),
        tree=seen.tree,
        dpkg=seen.dpkg,
        apk=seen.apk,
        python=seen.python,
        mutable=template.facts.get("mutable", ""),
    )


def _seen(layers: Sequence[Layer]) -> _Seen:
    view = View(layers)
    return _Seen(seen_digest(view), _dpkg(view), _apk(view), _python(view))


def _seen_inside(layers: Sequence[Layer]) -> _Seen:
    """The same by a process that is root of the sandboxes' ids: others than us own files, and some are closed to us."""
    words = [word for layer in layers for word in (layer.target, layer.source)]
    return msgspec.json.decode(run_module_inside(find_ids().namespace, __name__, words), type=_Seen)


def seen_digest(view: View) -> str:
    """Of names, types, modes, owners, attributes and contents of all that is seen: the same files have the same one,
    whatever layers they came in. What the sandbox's root may not look into counts without its content.
    """
    total = hashlib.sha256()
    for path, each in view.walk(()):
        kind = each.found.st_mode
        link = stat.S_ISLNK(kind)
        what = _content(each.path) if stat.S_ISREG(kind) else os.readlink(each.path) if link else b""
        texts = [b"/".join(path), what]
        for name, value in ({} if link else attributes(each.path)).items():
            if not name.startswith(OVERLAY):
                texts += [os.fsencode(name), value]
        total.update(f"{kind:o} {each.found.st_uid} {each.found.st_gid}".encode())
        total.update(b"".join(b" %d:%s" % (len(text), text) for text in texts) + b"\n")
    return f"sha256:{total.hexdigest()}"


def _content(path: bytes) -> bytes:
    try:
        return content_digest(path).encode()
    except PermissionError:  # a file of the host's root below `host`: closed to us, and to every sandbox of ours
        return b"closed"


def differences(one: Template, other: Template, most: int = 100) -> list[str]:
    """Paths in which the layers of two builds differ, with the number of the layer, the lowest first."""
    found: list[str] = []
    pairs = zip(reversed(one.layers), reversed(other.layers), strict=False)
    for number, (mine, theirs) in enumerate(pairs, 1):
        if mine.digest == theirs.digest:
            continue
        left, right = dict(listing(mine.source)), dict(listing(theirs.source))
        paths = sorted(path for path in left.keys() | right.keys() if left.get(path) != right.get(path))
        found += [f"layer {number}: /{os.fsdecode(path)}" for path in paths]
    if len(one.layers) != len(other.layers):
        found.append(f"{len(one.layers)} layers and {len(other.layers)}")
    return found[:most]


def _dpkg(view: View) -> dict[str, str]:
    parts = view.names(view.resolve(names_of("var/lib/dpkg/status.d")))
    files = ["var/lib/dpkg/status", *(f"var/lib/dpkg/status.d/{os.fsdecode(name)}" for name in parts)]
    found = {}
    for file in files:
        for stanza in stanzas((view.read(file) or b"").decode("utf-8", "replace")):
            if "Package" in stanza and stanza.get("Status", "installed").endswith("installed"):
                found[f"{stanza['Package']}:{stanza.get('Architecture', 'all')}"] = stanza.get("Version", "")
    return dict(sorted(found.items()))


def _apk(view: View) -> dict[str, str]:
    text = (view.read("lib/apk/db/installed") or b"").decode("utf-8", "replace")
    found = {}
    for paragraph in text.split("\n\n"):
        fields = {line[0]: line[2:] for line in paragraph.splitlines() if line[1:2] == ":"}
        if "P" in fields:
            found[fields["P"]] = fields.get("V", "")
    return dict(sorted(found.items()))


def _python(view: View) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for top in PYTHON:
        for name in _installed(view, names_of(top), _DEPTH):
            if match := _INSTALLED.fullmatch(name):
                found.setdefault(match["name"].lower().replace("_", "-"), set()).add(match["version"])
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _installed(view: View, top: Parts, depth: int) -> list[str]:
    """The names of what tells of installed packages below a directory."""
    names = view.names(top) if depth else []
    found = [os.fsdecode(name) for name in names if name.endswith((b".dist-info", b".egg-info"))]
    for name in names:
        each = view.find((*top, name))
        if each is not None and stat.S_ISDIR(each.found.st_mode) and not name.endswith(b"-info"):
            found += _installed(view, (*top, name), depth - 1)
    return found


if __name__ == "__main__":
    places = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(_seen([*map(Layer, places[::2], places[1::2])])))
