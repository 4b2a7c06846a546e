"""``.dockerignore``: which files of a context are not part of it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proofbox.errors import InvalidInput

NAME: Final = ".dockerignore"


@dataclass(frozen=True, slots=True)
class Ignored:
    """Patterns in their order; the last one that fits a path or a directory above it decides."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()

    @property
    def prunes(self) -> bool:
        """Whether nothing below an ignored directory can be meant."""
        return not any(wanted for _, wanted in self.patterns)

    def covers(self, path: str) -> bool:
        """Whether that file or directory is left out; ``path`` is relative, with ``/``."""
        names = path.split("/")
        above = ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        ignored = False
        for pattern, wanted in self.patterns:
            if any(pattern.fullmatch(each) for each in above):
                ignored = not wanted
        return ignored


def parse(text: str) -> Ignored:
    """The content of a ``.dockerignore``. Raises ``InvalidInput`` for a pattern that is none."""
    found = []
    for line in text.splitlines():
        line = line.strip().lstrip("\ufeff")
        if not line or line.startswith("#"):
            continue
        wanted = line.startswith("!")
        plain = posixpath.normpath("/" + line.removeprefix("!").strip()).strip("/")
        if plain:
            found.append((pattern(plain), wanted))
    return Ignored(tuple(found))


def pattern(text: str) -> re.Pattern[str]:
    """``*`` and ``?`` stay within a name, ``**`` does not, ``[a-z]`` and ``[^a]`` are one character.

    Raises ``InvalidInput`` for one that is none.
    """
    try:
        return re.compile("".join(_translated(text)), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"pattern {text!r}: {error.msg}") from error


def _translated(text: str) -> Sequence[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("**/", at):
            found.append("(?:.*/)?")
            at += 3
        elif text.startswith("**", at):
            found.append(".*")
            at += 2
        elif text[at] == "[":
            close = text.find("]", at + 2)
            if close < 0:
                raise InvalidInput(f"pattern {text!r}: ']' is missing")
            inner = re.sub(r"([\\\[&~|])", r"\\\1", text[at + 1 : close])
            found.append(f"[{inner}]")
            at = close + 1
        else:
            char = text[at + 1 : at + 2] if text[at] == "\\" else text[at]
            plain = text[at] == "\\" or char not in "*?"
            found.append(re.escape(char) if plain else "[^/]*" if char == "*" else "[^/]")
            at += 2 if text[at] == "\\" else 1
    return found
