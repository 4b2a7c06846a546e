"""How much memory there is for sandboxes: the machine's, or what a group around this process allows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from proofbox.host.cgroup import own_groups

LIMIT_FILES: Final = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
"""Of either version: the limit, and what is in use."""


def available_memory() -> int:
    """Bytes that all sandboxes together can have at most. Some file reads; it does not change while a process runs."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for _, _, limit in _limits(own_groups("memory")))])


def free_memory(groups: Iterable[Path] | None = None) -> int:
    """Bytes that this process could have now: of the machine's, and of what the groups around it allow. Some file
    reads. ``groups`` stands for those in tests.
    """
    around = own_groups("memory") if groups is None else groups
    stat = dict(_numbers(Path("/proc/meminfo")))
    machine = stat.get("MemAvailable:", stat["MemFree:"]) << 10
    left = [limit - _used(group, name) for group, name, limit in _limits(around)]
    return max(0, min([machine, *left]))


def _limits(groups: Iterable[Path]) -> list[tuple[Path, str, int]]:
    """Each group that has one, the file that says so, and the limit."""
    found = []
    for group in groups:
        for name in LIMIT_FILES:
            try:
                text = (group / name).read_text().strip()
            except OSError:  # the other version's name, or a root group, which has none
                continue
            found += [(group, name, int(text))] if text.isdecimal() else []
    return found


def _used(group: Path, limit: str) -> int:
    """What cannot be taken from a group: cached files that nobody uses can."""
    used = int((group / LIMIT_FILES[limit]).read_text())
    stat = dict(_numbers(group / "memory.stat"))
    return used - stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _numbers(file: Path) -> Iterable[tuple[str, int]]:
    for line in file.read_text().splitlines():
        name, number = line.split()[:2]
        yield name, int(number)
