"""A sandbox's mounts and processes as the kernel shows them to the host: nothing inside can change what is told here.

The lines are those that the guest tells of the same things (``guest/fingerprint.c``), so that the two can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.host import threads

KERNELS: Final = frozenset({"overlay", "proc", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2"})
"""File systems whose inside says what is mounted. Of others it would be a path of the host's."""
OWN_OPTIONS: Final = frozenset({"overlay", "tmpfs", "devpts"})
"""Those that are made for the sandbox: their options are part of it."""
COMMAND_LINE: Final = 255
"""Bytes of a command line that are told."""
_NOT_EXECUTED: Final = 0x40
"""PF_FORKNOEXEC of the kernel: a fork that runs its parent's program."""


def first_process(pids: Sequence[int]) -> int | None:
    """Of a sandbox's processes the one that is the first in its PID namespace; None if it is gone."""
    inside = [(threads.inner_pid(pid), pid) for pid in pids]
    deepest = max((depth for (depth, _), _ in inside), default=0)
    return next((pid for (depth, number), pid in inside if depth == deepest and number == 1), None)


def mount_lines(pid: int) -> list[str] | None:
    """The mounts that a process sees; None if it is gone."""
    try:
        table = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return [_mount_line(line) for line in table.splitlines()]


def _mount_line(line: str) -> str:
    before, _, after = line.partition(" - ")
    root, place, flags = before.split()[3:6]
    kind, source, options = after.split()
    words = [place, flags, kind]
    if kind in KERNELS or source == "proofbox":
        words.append(root)
    if kind in OWN_OPTIONS:
        words += [each for each in options.split(",") if not each.startswith(("uid=", "gid="))]
    return " ".join(words)


def process_lines(pids: Sequence[int]) -> list[str] | None:
    """Its processes but the guest and what the guest forked for itself; None where we may not see what they run.

    A process that has ended, or is about to (no program is left in any thread of it), is left out.
    """
    depths = {pid: threads.inner_pid(pid) for pid in pids}
    deepest = max((depth for depth, _ in depths.values()), default=0)
    first = first_process(pids)
    lines: list[str] = []
    try:
        own = _program(first) if first is not None else None
        for pid in (pid for pid, (depth, _) in depths.items() if depth == deepest and pid != first):
            program, state = _program(pid), _state(pid)
            if state is None or (program is None and state.threads < 2):
                continue
            if own is None or program != own or not state.forked:
                lines.append(f"({state.name}) {_command_line(pid)}")
    except PermissionError:
        return None
    return lines


@dataclass(frozen=True, slots=True)
class _State:
    name: str
    forked: bool
    """It runs the program of who forked it."""
    threads: int


def _program(pid: int) -> tuple[int, int] | None:
    """The file that its first thread runs; None if that has ended."""
    try:
        found = os.stat(f"/proc/{pid}/exe")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return found.st_dev, found.st_ino


def _state(pid: int) -> _State | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    return _State(name, bool(int(words[6]) & _NOT_EXECUTED), int(words[17]))


def _command_line(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()[:COMMAND_LINE]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "surrogateescape")
