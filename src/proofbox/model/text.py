"""Text that a stranger chose."""

from __future__ import annotations


def one_line(text: str) -> str:
    """As it may be shown to people. Threat: escape sequences in it drive their terminal."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)
