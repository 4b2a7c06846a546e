"""Finds what a killed process leaves: its orphans become children of the test, whatever they did to hide."""

from __future__ import annotations

import ctypes
import os
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def adopting() -> Iterator[None]:
    """Every orphaned descendant becomes a child of this process instead of disappearing to process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children() -> dict[int, str]:
    """Living children of this process with their names; those that have ended are not counted, and reaped."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if int(parent) != os.getpid():
            continue
        if state == "Z":
            os.waitpid(int(entry.name), os.WNOHANG)
        else:
            found[int(entry.name)] = name.partition("(")[2]
    return found


def settled(before: dict[int, str], seconds: float) -> dict[int, str]:
    """Children that are there now and were not before, once there are none or the time is over."""
    end = time.monotonic() + seconds
    while True:
        left = {pid: name for pid, name in children().items() if pid not in before}
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)


def traces_of(word: str) -> list[str]:
    """Cgroups, mounts and files of live state whose name holds the word."""
    found = [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if word in line]
    for root, directories, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{root}/{name}" for name in directories if word in name]
    return found
