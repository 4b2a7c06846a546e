"""The lasting record of starts that were not clean, of all processes that share a ``PROOFBOX_HOME``.

    HOME/unclean-starts       a line of JSON for each, the latest last
    HOME/unclean-starts.old   the lines before those, from when it had become too large; they are dropped for the next

A line is appended by one write(2), so that lines of several processes are never mixed, and a torn one (the disk was
full, the machine lost power) is followed by a line break before the next. The files may be removed at any time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import msgspec

from proofbox.errors import StoreFailed
from proofbox.host.home import data_home, private_directory

log = logging.getLogger("proofbox.host")

FILE: Final = "unclean-starts"
OLD: Final = ".old"
KEPT: Final = 256 << 10
"""Bytes in each of the two files, but for the last lines."""
LINE: Final = 2048
"""Bytes of a line at most: below PIPE_BUF."""
NAMED: Final = 16
"""Differences that are named at most."""
WORD: Final = 200
"""Characters of what is named in a line: templates and files may have any names."""


class UncleanStartNoted(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. ``at``: seconds since 1970; ``differences``: the first of what differed."""

    at: float
    runtime: str
    template: str
    differences: tuple[str, ...]


class UncleanStarts(msgspec.Struct, frozen=True, kw_only=True):
    """What is on record: how many, since when (the first that is kept) and the latest; None where there is none."""

    count: int
    since: float | None
    last: UncleanStartNoted | None


def note(runtime: str, template: str, differences: Sequence[str]) -> None:
    """Puts one on record; within a write to a file. Never raises: that it could not be written is logged."""
    try:
        _append(_line(runtime, template, differences))
    except (OSError, StoreFailed) as error:
        log.warning("an unclean start is not put on record in %s: %s", data_home() / FILE, error)


def noted() -> UncleanStarts:
    """What is on record now. Raises ``OSError`` where it may not be read."""
    count, first, last = 0, None, None
    for line in _lines():
        try:
            found = msgspec.json.decode(line, type=UncleanStartNoted)
        except msgspec.MsgspecError:  # torn
            continue
        count, first, last = count + 1, first or found, found
    return UncleanStarts(count=count, since=first.at if first else None, last=last)


def _line(runtime: str, template: str, differences: Sequence[str]) -> bytes:
    kept = [_shown(each) for each in differences[:NAMED]]
    while True:
        about = {"at": time.time(), "runtime": _shown(runtime), "template": _shown(template), "differences": kept}
        line = f"\n{json.dumps(about)}\n".encode("ascii")
        if len(line) <= LINE or not kept:
            return line
        kept = kept[: len(kept) // 2]


def _shown(text: str) -> str:
    """As it may be shown on a terminal: names of files are whatever somebody chose."""
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in text[:WORD])


def _append(line: bytes) -> None:
    path = private_directory(data_home()) / FILE
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if os.fstat(file).st_size < KEPT:
            return
        with suppress(BlockingIOError, FileNotFoundError):  # somebody else is at it, or was
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.lstat(path)):
                os.rename(path, f"{path}{OLD}")
    finally:
        os.close(file)


def _lines() -> Iterator[bytes]:
    """Both files are opened before either is read: what is moved from one to the other meanwhile is read once."""
    path = data_home() / FILE
    with ExitStack() as stack:
        opened = []
        for name in (str(path), f"{path}{OLD}"):
            with suppress(FileNotFoundError):
                opened.append(stack.enter_context(open(name, "rb")))
        if len(opened) == 2 and os.path.sameopenfile(opened[0].fileno(), opened[1].fileno()):
            opened.pop()
        for file in reversed(opened):
            yield from filter(None, file.read(4 * KEPT).split(b"\n"))
