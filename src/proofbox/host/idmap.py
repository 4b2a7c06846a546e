"""Which ids a sandbox gets: a range of its own where this process may map one; else the ids that this host lends to its
user, the same ones for all of its sandboxes; else one id.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proofbox.host.subids import Extent, Lent, NotLent, lent_ids, make_namespace, run_inside
from proofbox.kit import tree
from proofbox.kit.forked import OfProcess

RANGE: Final = 65_536
LOWEST: Final = 0x2000_0000
"""Above what distributions, containers' subordinate ranges and directory services hand out."""
HIGHEST: Final = 0x7FFF_0000

_CAP_SETGID: Final = 6
_CAP_SETUID: Final = 7
_CAP_SYS_ADMIN: Final = 21


@dataclass(frozen=True, slots=True)
class IdMap:
    """What the ids of a user namespace, from 0 up, are in the one above it."""

    uids: tuple[Extent, ...]
    gids: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Ids:
    """What this process may map. ``full``: ``RANGE`` ids for each sandbox, out of ``LOWEST`` to ``HIGHEST``."""

    full: bool
    uid: int
    gid: int
    why_not: str = ""
    """Why there is one id only."""
    namespace: int = -1
    """A user namespace with ``RANGE`` ids that this user may be root of, as a descriptor of this process; else -1."""
    lent: Lent | None = None
    """The ids of the host in it, beside the user's own."""

    @property
    def users(self) -> bool:
        """Several users exist inside."""
        return self.full or self.namespace >= 0

    def map_of(self, base: int) -> IdMap | None:
        """Of a sandbox whose own range begins at ``base``, or of any that is made in ``namespace``. None with one id.

        In the second case each id is itself, and still no part reaches across two of the namespace above: the kernel
        takes no such map.
        """
        if self.full:
            return IdMap((Extent(base, RANGE),), (Extent(base, RANGE),))
        return None if self.lent is None else IdMap(self.lent.inside(self.lent.uids), self.lent.inside(self.lent.gids))

    def seen_owner(self, uid: int, gid: int) -> tuple[int, int]:
        """Whom a file of this user's on the host belongs to inside, where its layer's ids are mapped as ours are."""
        if self.uid == 0:
            return uid, gid
        return (0, 0) if self.lent is None else (Lent.number(self.lent.uids, uid), Lent.number(self.lent.gids, gid))

    def has(self, uid: int) -> bool:
        """Whether root of the sandboxes' ids may do anything with what belongs to that user of the host."""
        return self.uid in (0, uid) or (self.lent is not None and Lent.number(self.lent.uids, uid) > 0)

    def own(self, path: Path, uid: int) -> None:
        """Gives a file to a user as sandboxes see it; with one id there is none to give it to. Raises ``OSError``."""
        if self.uid == 0:
            try:
                os.chown(path, uid, uid)
            except OSError as error:  # root of a namespace that has no such id
                if error.errno != errno.EINVAL:
                    raise
        elif self.namespace >= 0:
            run_inside(self.namespace, ["chown", f"{uid}:{uid}", str(path)])

    def described(self) -> str:
        """For the record of each trial."""
        if self.full:
            return f"{RANGE} for each sandbox"
        return f"{RANGE} for all sandboxes: uid {self.uid}, gid {self.gid}, lent {self.lent}" if self.users else "1"


@dataclass(slots=True)
class _Process:
    """A launcher counts on having its process's namespace for itself."""

    found: Ids | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_mine: Final = OfProcess(_Process)


def find_ids() -> Ids:
    """What this process may map, found out once. Blocks for some milliseconds then: call it in a thread."""
    mine = _mine()
    with mine.lock:
        if mine.found is None:
            mine.found = _find()
        return mine.found


def _find() -> Ids:
    uid, gid = os.geteuid(), os.getegid()
    refused = no_range()
    if not refused:
        return Ids(True, uid, gid)
    if uid == 0:
        return Ids(False, uid, gid, refused)
    try:
        lent = lent_ids(uid)
        return Ids(False, uid, gid, namespace=make_namespace(lent, uid, gid), lent=lent)
    except NotLent as error:
        return Ids(False, uid, gid, f"{refused} and {error}")


def _remove_inside(path: str) -> None:
    namespace = find_ids().namespace
    if namespace < 0:
        raise PermissionError(f"{path} holds what belongs to another user")
    run_inside(namespace, ["rm", "-rf", "--one-file-system", "--", path])


tree.as_root = _remove_inside


def no_range(root: Path = Path("/")) -> str:
    """Why this process may not map ranges of its own choice; empty if it may. ``root`` stands for "/" in tests."""
    uid = os.geteuid()
    if uid != 0:
        return f"uid {uid} is not root"
    effective = _effective((root / "proc/self/status").read_text())
    lacking = [
        name
        for name, bit in (("SETGID", _CAP_SETGID), ("SETUID", _CAP_SETUID), ("SYS_ADMIN", _CAP_SYS_ADMIN))
        if not effective >> bit & 1
    ]
    if lacking:
        return f"root without the capabilities {', '.join(lacking)}"
    for name in ("uid_map", "gid_map"):
        if not _covers((root / "proc/self" / name).read_text()):
            return f"this user namespace's {name} does not reach ids {LOWEST} to {HIGHEST}"
    return ""


def _effective(status: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def _covers(id_map: str) -> bool:
    for line in id_map.splitlines():
        first, _, count = map(int, line.split())
        if first <= LOWEST and first + count >= HIGHEST + RANGE:
            return True
    return False
