"""Makes room in a delegated control group of version 2.

A group that has processes cannot hand controllers down. Whoever starts us in a delegated group (a systemd scope with
``Delegate=yes``, a container with a writable group) starts us *in* it, so we move into a group below, with the
processes that stand between us and the group's maker. Nobody else is moved: a group that others live in stays as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from proofbox.host.cgroup import Place, find_place

ASIDE: Final = "proofbox-client"


def claim_place() -> Place:
    """As ``find_place``, after making room where that is needed and touches only us, our ancestors and descendants.

    The group that the processes go to stays: they live in it. Safe to repeat, and in parallel.
    """
    place = find_place()
    if not place.directories and place.crowded is not None and _move_aside(place.crowded):
        return find_place()
    return place


def _move_aside(group: Path) -> bool:
    """Moves all processes of the group into a group below it; False, and nothing moved, if one is not family."""
    try:
        members = _members(group)
        if not members <= _family(members):
            return False
        aside = group / ASIDE
        aside.mkdir(exist_ok=True)
        for pid in members:
            _move(pid, aside)
        # A member may have forked between the look and its move; one more look takes what came of that.
        for pid in _members(group) & _family(_members(group)):
            _move(pid, aside)
        return not _members(group)
    except OSError:
        return False  # not ours to split after all: the place stays what it was, with its reason


def _members(group: Path) -> set[int]:
    return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}


def _move(pid: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:
        return  # it has ended


def _family(members: set[int]) -> set[int]:
    """Of these, ourselves, our ancestors, and whoever descends from us."""
    us = os.getpid()
    line = _ancestors(us)
    return {pid for pid in members if pid == us or pid in line or us in _ancestors(pid)}


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found
