"""What a sandbox is at one moment, part by part, so that two of them can be compared and a difference can be named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec

from proofbox.errors import InvalidInput

PartName = Literal[
    "files",
    "processes",
    "sockets",
    "mounts",
    "ipc",
    "keys",
    "users",
    "timers",
    "environment",
    "network",
    "limits",
]
PARTS: Final[tuple[PartName, ...]] = get_args(PartName)
"""In the order in which they are told; a part's number on the wire is its place here, from 1."""

NAMED: Final = 20
"""Lines of one part that a difference names at most; the rest is counted."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side of a sandbox. ``lines`` are sorted; ``digest`` is the SHA-256 of them, each with its end."""

    name: PartName
    digest: str
    lines: tuple[str, ...]


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All parts, in the order of ``PARTS``. Only two of the same form can be compared."""

    full: bool
    parts: tuple[Part, ...]

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hex digits over the digests of the parts."""
        told = "".join(f"{part.name} {part.digest}\n" for part in self.parts)
        return f"sha256:{hashlib.sha256(told.encode()).hexdigest()}"

    def part(self, name: PartName) -> Part:
        """The part of that name."""
        return self.parts[PARTS.index(name)]


def fingerprint_of(lines: Mapping[PartName, Iterable[str]], *, full: bool) -> Fingerprint:
    """The value for these lines, in whatever order they come. A part without lines is a part all the same."""
    return Fingerprint(full, tuple(_part(name, lines.get(name, ())) for name in PARTS))


def difference(a: Fingerprint, b: Fingerprint) -> tuple[str, ...]:
    """What ``b`` has that ``a`` has not ("+") and the other way round ("-"), named by part; empty if they are equal.

    Raises ``InvalidInput`` for two of different forms.
    """
    if a.full != b.full:
        raise InvalidInput("a full fingerprint and a cheap one do not tell the same things and cannot be compared")
    found: list[str] = []
    for mine, its in zip(a.parts, b.parts, strict=True):
        if mine.digest != its.digest:
            found += _named(mine, its)
    return tuple(found)


def _part(name: PartName, lines: Iterable[str]) -> Part:
    held = tuple(sorted(lines))
    total = hashlib.sha256()
    for line in held:
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return Part(name, total.hexdigest(), held)


def _named(a: Part, b: Part) -> list[str]:
    changes = [f"{a.name}: - {line}" for line in _without(a.lines, b.lines)]
    changes += [f"{a.name}: + {line}" for line in _without(b.lines, a.lines)]
    if len(changes) > NAMED:
        changes[NAMED:] = [f"{a.name}: and {len(changes) - NAMED} lines more"]
    return changes or [f"{a.name}: {a.digest} is not {b.digest}"]


def _without(lines: Iterable[str], others: Iterable[str]) -> list[str]:
    """The lines that are not among the others, each as often as it is missing there."""
    left: dict[str, int] = {}
    for line in others:
        left[line] = left.get(line, 0) + 1
    missing = []
    for line in lines:
        if left.get(line):
            left[line] -= 1
        else:
            missing.append(line)
    return missing
