"""Which QEMU this host has, and what of the host it needs to see."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from proofbox.kit.binary import find_program

Accelerator = Literal["kvm", "tcg"]
Board = Literal["microvm", "q35"]

DEADLINE_S: Final = 20.0
"""For each question that is asked of a program; some milliseconds are usual."""

PROGRAM: Final = "qemu-system-x86_64"
BESIDE: Final = ("/usr/local/bin", "/usr/bin", "/usr/libexec")
"""Where it may be beside the usual places."""
MODULES: Final = ("/usr/lib/*-linux-gnu/qemu", "/usr/lib/qemu", "/usr/lib64/qemu", "/usr/local/lib/*/qemu")


@dataclass(frozen=True, slots=True)
class Qemu:
    """One program, and the files and directories without which it does not run."""

    path: str
    version: str
    """As it says itself, with its package's."""
    shown: tuple[str, ...]
    board: Board
    """The machine that it is asked for: the one without firmware tables and buses, where it knows that one."""

    @property
    def number(self) -> tuple[int, ...]:
        """The version to compare; empty if it is not to be understood."""
        found = re.search(r"version (\d+)\.(\d+)", self.version)
        return tuple(map(int, found.groups())) if found else ()


def find_qemu() -> Qemu | None:
    """This host's; None if there is none. Runs some programs for some milliseconds: use a thread.

    Debian's small one for just such machines, qemu-system-x86_64-microvm, is not taken: it cannot filter system calls.
    """
    if platform.machine() != "x86_64":
        return None
    found = find_program(PROGRAM, *BESIDE)
    if found is None:
        return None
    program = os.path.realpath(found)
    emulators = _emulators()
    version = next(iter(_told([program, "--version"]).splitlines()), "")
    shown = (program, *emulators, *_data(program), *_libraries([program, *emulators]))
    return Qemu(program, version, tuple(dict.fromkeys(shown)), _board(program))


def _board(program: str) -> Board:
    """Distributions leave the small one out of some builds; the other one is in all of them."""
    return "microvm" if re.search(r"^microvm\s", _told([program, "-M", "help"]), re.MULTILINE) else "q35"


def _emulators() -> list[str]:
    """Emulation is a module where distributions split QEMU, found in a directory that it was built with."""
    return [str(file) for pattern in MODULES for file in Path("/").glob(f"{pattern[1:]}/accel-tcg-x86_64.so")]


def _data(program: str) -> list[str]:
    """Firmware."""
    return [os.path.normpath(line) for line in _told([program, "-L", "help"]).split() if os.path.isdir(line)]


def _libraries(programs: list[str]) -> list[str]:
    """Each library's path as the dynamic linker looks for it, and the linker's own; none for a static program."""
    found = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", _told(["ldd", *programs]), re.MULTILINE)
    return [*dict.fromkeys(found)]


def _told(words: list[str]) -> str:
    """What a program writes to standard output; nothing if it cannot be run."""
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
