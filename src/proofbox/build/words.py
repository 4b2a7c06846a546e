"""Variables and quotes in the instructions of a Dockerfile, by its own rules, which are fewer than a shell's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from proofbox.errors import InvalidInput

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]")


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """``$name``, ``${name}``, ``${name:-word}``, ``${name:+word}``, ``${name:?word}`` (with and without the colon);
    quotes are removed.

    Raises ``InvalidInput`` for what a shell could do and this cannot, and where ``?`` finds no value.
    """
    return _Text(text, variables, escape).read()


def expand_content(text: str, variables: Mapping[str, str]) -> str:
    """The same for a text in which quotes stay: a file that is written in the Dockerfile."""
    return _Text(text, variables, "\\", quotes=False).read()


class _Text:
    """A text that is being read."""

    def __init__(self, text: str, variables: Mapping[str, str], escape: str, *, quotes: bool = True) -> None:
        self._text = text
        self._variables = variables
        self._escape = escape
        self._quotes = quotes
        self._at = 0

    def read(self, until: str = "") -> str:
        """All up to that character, or to the end."""
        found: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == until:
                return "".join(found)
            self._at += 1
            if char == "$":
                found.append(self._variable())
            elif char == self._escape:
                found.append(self._escaped())
            elif char == "'" and self._quotes:
                found.append(self._until("'"))
            elif char == '"' and self._quotes:
                found.append(self._quoted())
            else:
                found.append(char)
        if until:
            raise InvalidInput(f"{self._text!r}: {until!r} is missing")
        return "".join(found)

    def _escaped(self) -> str:
        if self._at >= len(self._text):
            return self._escape
        char = self._text[self._at]
        if not self._quotes and char not in ("$", self._escape):
            return self._escape
        self._at += 1
        return char

    def _until(self, end: str) -> str:
        close = self._text.find(end, self._at)
        if close < 0:
            raise InvalidInput(f"{self._text!r}: {end!r} is missing")
        found, self._at = self._text[self._at : close], close + 1
        return found

    def _quoted(self) -> str:
        found: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == '"':
                return "".join(found)
            if char == "$":
                found.append(self._variable())
            elif char == self._escape and self._text[self._at : self._at + 1] in ('"', "$", self._escape):
                found.append(self._escaped())
            else:
                found.append(char)
        raise InvalidInput(f"{self._text!r}: a closing quote is missing")

    def _variable(self) -> str:
        braced = self._text[self._at : self._at + 1] == "{"
        name = _NAME.match(self._text, self._at + braced)
        if name is None:
            if braced:
                raise InvalidInput(f"{self._text!r}: after '${{' there is no name")
            return "$"
        self._at = name.end()
        value = self._variables.get(name[0])
        if not braced:
            return value or ""
        return self._with_default(value)

    def _with_default(self, value: str | None) -> str:
        rest = self._text[self._at :]
        if rest.startswith("}"):
            self._at += 1
            return value or ""
        operator = next((sign for sign in (":-", ":+", ":?", "-", "+", "?") if rest.startswith(sign)), None)
        if operator is None:
            raise InvalidInput(f"{self._text!r}: of ${{...}} only :-, -, :+, +, :? and ? are known here")
        self._at += len(operator)
        word = self.read(until="}")
        self._at += 1
        there = value is not None and (value != "" or ":" not in operator)
        if "+" in operator:
            return word if there else ""
        if "?" in operator and not there:
            raise InvalidInput(f"{self._text!r}: {word or 'a variable in it has no value'}")
        return value if there and value is not None else word
