"""What a template holds, written down: packages and their versions, layers, the digest of what a sandbox sees."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import Final

import msgspec

from proofbox.kit.newtree import Parts
from proofbox.model.template import Template
from proofbox.templates.packages import stanzas
from proofbox.templates.tree import OVERLAY, attributes, content_digest, listing
from proofbox.templates.view import View, names_of

PYTHON: Final = ("usr/lib", "usr/local/lib", "opt", "root", "home", "app", "venv", ".venv")
"""Where installed Python packages are looked for; elsewhere one is a directory like any other."""

_INSTALLED: Final = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-/]+)\.(dist-info|egg-info)")
_DEPTH: Final = 12


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """A template, written down. ``tree``: the digest of all that a sandbox of it sees; empty where it lies over
    directories of the host, for which their list of packages stands.
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


def lock(template: Template) -> Lock:
    """Reads it, without running anything; it was resolved. Raises ``OSError``. Takes seconds for a big one."""
    view = View.of(template)
    own = all(layer.digest for layer in template.layers)
    return Lock(
        template=template.digest,
        name=template.name,
        layers=tuple(layer.digest or f"host:{layer.source}" for layer in template.layers),
        tree=seen_digest(view) if own else "",
        dpkg=_dpkg(view),
        apk=_apk(view),
        python=_python(view),
        mutable=template.facts.get("mutable", ""),
    )


def seen_digest(view: View) -> str:
    """Of names, types, modes, owners, attributes and contents of all that is seen: the same files have the same one,
    whatever layers they came in.
    """
    total = hashlib.sha256()
    for path, each in view.walk(()):
        kind = each.found.st_mode
        link = stat.S_ISLNK(kind)
        what = content_digest(each.path).encode() if stat.S_ISREG(kind) else os.readlink(each.path) if link else b""
        texts = [b"/".join(path), what]
        for name, value in ({} if link else attributes(each.path)).items():
            if not name.startswith(OVERLAY):
                texts += [os.fsencode(name), value]
        total.update(f"{kind:o} {each.found.st_uid} {each.found.st_gid}".encode())
        total.update(b"".join(b" %d:%s" % (len(text), text) for text in texts) + b"\n")
    return f"sha256:{total.hexdigest()}"


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
