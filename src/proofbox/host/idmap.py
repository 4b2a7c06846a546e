"""Which ids a sandbox gets: a range of its own where this process may map one, one id otherwise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RANGE: Final = 65_536
LOWEST: Final = 0x2000_0000
"""Above what distributions, containers' subordinate ranges and directory services hand out."""
HIGHEST: Final = 0x7FFF_0000

_CAP_SETGID: Final = 6
_CAP_SETUID: Final = 7
_CAP_SYS_ADMIN: Final = 21


@dataclass(frozen=True, slots=True)
class Ids:
    """What this process may map. ``full``: ``RANGE`` ids for each sandbox, out of ``LOWEST`` to ``HIGHEST``."""

    full: bool
    uid: int
    gid: int
    why_not: str = ""


def find_ids(root: Path = Path("/")) -> Ids:
    """Looks at this process's ids and capabilities. ``root`` stands for "/" in tests."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return Ids(False, uid, gid, f"uid {uid} is not root")
    effective = _effective((root / "proc/self/status").read_text())
    lacking = [
        name
        for name, bit in (("SETGID", _CAP_SETGID), ("SETUID", _CAP_SETUID), ("SYS_ADMIN", _CAP_SYS_ADMIN))
        if not effective >> bit & 1
    ]
    if lacking:
        return Ids(False, uid, gid, f"root without the capabilities {', '.join(lacking)}")
    for name in ("uid_map", "gid_map"):
        if not _covers((root / "proc/self" / name).read_text()):
            return Ids(False, uid, gid, f"this user namespace's {name} does not reach ids {LOWEST} to {HIGHEST}")
    return Ids(True, uid, gid)


def _effective(status: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def _covers(id_map: str) -> bool:
    for line in id_map.splitlines():
        first, _, count = map(int, line.split())
        if first <= LOWEST and first + count >= HIGHEST + RANGE:
            return True
    return False


def choose_base(sandbox: str, taken: Container[int]) -> int:
    """The first id of the sandbox's range: by the hash of its id, the next one that is not taken.

    Kernel quotas for each user (keys, inotify watches, pending signals) are then shared with no other sandbox of
    this process, and with one of another process only by a rare chance.
    """
    slots = (HIGHEST - LOWEST) // RANGE
    start = int.from_bytes(hashlib.sha256(sandbox.encode()).digest()[:4], "little") % slots
    for step in range(slots):
        base = LOWEST + (start + step) % slots * RANGE
        if base not in taken:
            return base
    return LOWEST + start * RANGE
