"""The command line. One file a noun; nothing heavy is imported before a command needs it."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The program ``proofbox``: runs the command line of this process and exits with its status."""
    import sys

    from proofbox.cli.app import invoke

    sys.exit(invoke(sys.argv[1:]))
