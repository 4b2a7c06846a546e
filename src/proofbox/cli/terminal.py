"""The terminal that we run in: raw while a shell in a sandbox has it, and always given back as it was."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread

CHUNK: Final = 65_536

RESTORE: Final = b"\x1b[?1047l\x1b[?2004l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[0m"
"""What a program that was killed may have left on: the alternate screen, bracketed paste, a hidden cursor, mouse
reports, colours. termios knows nothing of these."""


@contextlib.contextmanager
def raw(fd: int) -> Iterator[None]:
    """Every key goes through as it is, Ctrl-C too. The settings before are restored, whatever happens."""
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        write_all(1, RESTORE)


def size(fd: int) -> tuple[int, int]:
    """Rows and columns; 24 and 80 for a terminal that does not know its own size."""
    found = os.get_terminal_size(fd)
    return found.lines or 24, found.columns or 80


def write_all(fd: int, data: bytes) -> None:
    """Blocks until all is written. Raises ``BrokenPipeError`` when nobody reads any more."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def show(pipe: int, data: bytes) -> None:
    """Bytes of pipe 1 or 2 to ours, unchanged. In a thread: a reader that stops reading must stop only this command."""
    await anyio.to_thread.run_sync(write_all, pipe, data, abandon_on_cancel=True)


async def typed(fd: int) -> AsyncIterator[bytes]:
    """What comes in on ``fd`` until its end. Safe to cancel: what was not taken yet stays for the next program."""
    while True:
        try:
            await anyio.wait_readable(fd)
        except PermissionError:
            # epoll refuses regular files (`< file`): they never block.
            await anyio.lowlevel.checkpoint()
        data = os.read(fd, CHUNK)
        if not data:
            return
        yield data


def is_interactive() -> bool:
    """Standard input and output are both a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
