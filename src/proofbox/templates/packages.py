"""What is installed on this host: the part of the ``host`` template's digest that stands for ``/usr``."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

DATABASES = (
    "var/lib/dpkg/status",
    "lib/apk/db/installed",
    "var/lib/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "var/lib/rpm/Packages",
)
"""Where each family of distributions keeps its list; the first that is there counts."""

LOCAL_DEPTH = 3


def database(root: Path) -> Path | None:
    """The package database below ``root``, if it has one that we know."""
    return next((root / name for name in DATABASES if (root / name).is_file()), None)


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a control file; continuation lines are left out."""
    for paragraph in text.split("\n\n"):
        fields = (line.split(":", 1) for line in paragraph.splitlines() if ":" in line and not line[0].isspace())
        found = {name: value.strip() for name, value in fields}
        if found:
            yield found


def package_list(root: Path) -> list[str]:
    """``name architecture version`` of each installed package, sorted.

    rpm's database is binary and reading it takes rpm: its content's sha256 stands for the list there. A host without a
    known database is described by names and sizes of what ``/usr`` holds in its first three levels.
    """
    source = database(root)
    if source is None:
        return sorted(listing(root / "usr"))
    if source.name == "status":
        text = source.read_text("utf-8", "surrogateescape")
        return sorted(
            f"{fields.get('Package')} {fields.get('Architecture', '')} {fields.get('Version', '')}"
            for fields in stanzas(text)
            if fields.get("Status", "").endswith(" installed")
        )
    if source.name == "installed":
        text = source.read_text("utf-8", "surrogateescape")
        return sorted(f"{f.get('P')} {f.get('A', '')} {f.get('V', '')}" for f in stanzas(text) if "P" in f)
    with open(source, "rb") as file:
        return [f"{source.name} {hashlib.file_digest(file, 'sha256').hexdigest()}"]


def directories(top: Path, depth: int = LOCAL_DEPTH) -> Iterator[Path]:
    """``top`` and the directories below it, at most ``depth`` levels down; none if it is missing."""
    if not top.is_dir() or top.is_symlink():
        return
    yield top
    if depth:
        for entry in os.scandir(top):
            if entry.is_dir(follow_symlinks=False):
                yield from directories(Path(entry.path), depth - 1)


def listing(top: Path) -> Iterator[str]:
    """Path, type and size of what the first levels below ``top`` hold: what no package manager knows."""
    for directory in directories(top):
        for entry in os.scandir(directory):
            found = entry.stat(follow_symlinks=False)
            size = found.st_size if stat.S_ISREG(found.st_mode) else 0
            yield f"{os.path.relpath(entry.path, top)} {stat.S_IFMT(found.st_mode):o} {size}"


def distribution(root: Path) -> dict[str, str]:
    """``ID`` and ``VERSION_ID`` of os-release and the machine, for the record."""
    found: dict[str, str] = {}
    for name in ("etc/os-release", "usr/lib/os-release"):
        if (root / name).is_file():
            lines = (root / name).read_text("utf-8", "replace").splitlines()
            found = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
            break
    return {
        "distribution": found.get("ID", "unknown"),
        "version": found.get("VERSION_ID", "unknown"),
        "architecture": platform.machine(),
    }
