"""How much memory there is for sandboxes: the machine's, or what a group around this process allows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from proofbox.host.cgroup import own_groups

LIMIT_FILES: Final = ("memory.max", "memory.limit_in_bytes")


def available_memory() -> int:
    """Bytes that all sandboxes together can have at most. Some file reads; it does not change while a process runs."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(own_groups("memory"))])


def _limits(groups: Iterable[Path]) -> list[int]:
    found = []
    for group in groups:
        for name in LIMIT_FILES:
            try:
                text = (group / name).read_text().strip()
            except OSError:  # the other version's name, or a root group, which has none
                continue
            found += [int(text)] if text.isdecimal() else []
    return found
