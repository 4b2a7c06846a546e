"""Which processors a sandbox with a limit on them runs on, and the files by which its programs count them.

A quota alone leaves every processor in sight, and a program that starts a worker for each would start 64 in a sandbox
of one. So such a sandbox gets as many as its limit rounds up to: those that the fewest others of this process have.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Final

SYS: Final = "/sys"
"""What libc and most programs count by: below it there is ``devices/system/cpu/online``, and nothing else here."""
CAN_WIDEN: Final = (
    "a sandbox with a limit on processors counts as many as it may use, but its programs can choose to run on all of "
    "them: no cpuset control group (its limit on CPU time holds all the same)"
)
STAT: Final = frozenset({"ctxt", "btime", "processes", "procs_running", "procs_blocked"})
"""Lines of /proc/stat that are kept beside those of the processors."""


class Processors:
    """Gives processors to sandboxes and takes them back. Safe in several threads. ``directory`` is for the files.

    ``available`` stands for those that this process may use.
    """

    def __init__(self, directory: Path, available: Iterable[int] | None = None) -> None:
        self._directory = directory
        self._available = sorted(os.sched_getaffinity(0) if available is None else available)
        random.shuffle(self._available)  # where several clients share a host, they do not all begin with the same
        self._held: dict[str, tuple[int, ...]] = {}
        self._alone = threading.Lock()

    def take(self, sandbox: str, cpus: float | None) -> tuple[int, ...]:
        """Processors for that sandbox until ``give_back``; none if it may use all that there are."""
        if cpus is None or math.ceil(cpus) >= len(self._available):
            return ()
        with self._alone:
            used = Counter(each for held in self._held.values() for each in held)
            chosen = tuple(sorted(sorted(self._available, key=lambda each: used[each])[: math.ceil(cpus)]))
            self._held[sandbox] = chosen
        return chosen

    def held(self, sandbox: str) -> tuple[int, ...]:
        """What ``take`` gave to that sandbox."""
        return self._held.get(sandbox, ())

    def give_back(self, sandbox: str) -> None:
        """That sandbox has them no more. Idempotent."""
        if self._held:
            with self._alone:
                self._held.pop(sandbox, None)

    def shown(self, chosen: Sequence[int]) -> tuple[tuple[str, str], ...]:
        """(place inside, source on this host) of what is to be shown read-only; none without ``chosen``.

        Figures in /proc/stat stand still at the moment at which these processors were first chosen together: they are
        the host's, and say nothing of the sandbox. Raises ``OSError``.
        """
        if not chosen:
            return ()
        directory = self._directory / listed(chosen)
        if not directory.is_dir():
            with self._alone:
                _write(directory, chosen)
        return tuple((target, f"{directory}{target}") for target in ("/proc/cpuinfo", "/proc/stat", SYS))

    def remove(self) -> int:
        """Removes the files; how many directories there were. Idempotent."""
        if not self._directory.is_dir():
            return 0
        shutil.rmtree(self._directory)
        return 1


def held_by(controllers: Container[str]) -> str:
    """For the record: what keeps sandboxes with a limit to their processors, of which there are so many in all."""
    kept = "cpuset" if "cpuset" in controllers else "affinity" if "cpu" in controllers else "nothing"
    return f"{len(os.sched_getaffinity(0))}, kept by {kept}"


def listed(chosen: Iterable[int]) -> str:
    """As the kernel reads them: "0,2"."""
    return ",".join(map(str, chosen))


def _write(directory: Path, chosen: Sequence[int]) -> None:
    """All files under another name first: a directory that is there is whole."""
    if directory.is_dir():
        return
    new = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    system = new / "sys/devices/system/cpu"
    system.mkdir(parents=True)
    (new / "proc").mkdir()
    for name in ("online", "possible", "present"):
        (system / name).write_text(f"{listed(chosen)}\n")
    for each in chosen:
        (system / f"cpu{each}").mkdir()
    (new / "proc/cpuinfo").write_text(cpuinfo_of(Path("/proc/cpuinfo").read_text(errors="replace"), chosen))
    (new / "proc/stat").write_text(stat_of(Path("/proc/stat").read_text(errors="replace"), chosen))
    for path in (directory.parent, new, *new.rglob("*")):  # whatever the caller's umask: every user inside may read
        path.chmod(0o755 if path.is_dir() else 0o644)
    new.rename(directory)


def cpuinfo_of(text: str, chosen: Sequence[int]) -> str:
    """/proc/cpuinfo of these processors only; what belongs to none of them (on some machines, at the end) stays."""
    kept = []
    for block in text.strip().split("\n\n"):
        name, _, number = block.partition("\n")[0].partition(":")
        if name.strip() != "processor" or int(number) in chosen:
            kept.append(block)
    return "\n\n".join(kept) + "\n\n"


def stat_of(text: str, chosen: Sequence[int]) -> str:
    """/proc/stat of these processors only: their lines, the sum of them as the first, and a few others."""
    lines = [line.split() for line in text.splitlines()]
    own = [words for words in lines if words and words[0] in {f"cpu{each}" for each in chosen}]
    total = [sum(column) for column in zip(*([int(word) for word in words[1:]] for words in own), strict=True)]
    rest = [words for words in lines if words and words[0] in STAT]
    return "".join(" ".join(map(str, words)) + "\n" for words in (["cpu ", *total], *own, *rest))
