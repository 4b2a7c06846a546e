"""Reads from /proc how a process of this host is kept apart from us."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proofbox.host.threads import inner_pid

NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
"""Every kind that is made anew for sandboxes, as /proc/PID/ns has them."""

TOLD: Final = ("CapBnd:", "Seccomp:", "NoNewPrivs:", "Uid:")


@dataclass(frozen=True, slots=True)
class Apart:
    """See ``model.isolation.Isolation``."""

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    unseen: tuple[str, ...] = NAMESPACES
    ids: tuple[tuple[int, int, int], ...] = ()
    seccomp: int | None = None
    no_new_privs: bool | None = None
    capabilities: tuple[int, ...] | None = None


def first_of(pids: Sequence[int]) -> int:
    """The one that is number 1 in the innermost PID namespace, else the lowest; 0 if there is none."""
    firsts = sorted((-depth, pid) for pid in pids for depth, number in (inner_pid(pid),) if number == 1)
    return firsts[0][1] if firsts else min(pids, default=0)


def called(pids: Sequence[int], name: str) -> int:
    """The first one that was started by that name; 0 if there is none."""
    return next((pid for pid in pids if _first_word(pid) == os.fsencode(name)), 0)


def read_apart(pid: int) -> Apart:
    """Of a process of this host. What we are not allowed to see is ``unseen``; a process that is gone shows nothing.

    One that has our ids, and no way to become another of them, has the one that it is.
    """
    status = _status(pid)
    if not status:
        return Apart()
    own: list[str] = []
    shared: list[str] = []
    unseen: list[str] = []
    for kind in NAMESPACES:
        found = _namespace(pid, kind) or _proven(pid, kind)
        (unseen if not found else shared if found == _namespace(os.getpid(), kind) else own).append(kind)
    bounding = int(status.get("CapBnd", "0"), 16)
    user = int(status.get("Uid", "0").split()[0])
    return Apart(
        own=tuple(own),
        shared=tuple(shared),
        unseen=tuple(unseen),
        ids=_ids(pid) if bounding or "user" not in shared else ((user, user, 1),),
        seccomp=int(status["Seccomp"]) if "Seccomp" in status else None,
        no_new_privs=status.get("NoNewPrivs") == "1",
        capabilities=tuple(number for number in range(64) if bounding >> number & 1),
    )


def _first_word(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).partition(b"\0")[0]
    except OSError:
        return b""


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    told = (line.partition(":") for line in lines if line.startswith(TOLD))
    return {name: value.strip() for name, _, value in told}


def _namespace(pid: int, kind: str) -> str:
    """Its name; empty if it may not be looked at: of a guest, which nobody may trace, only root may ask."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def _proven(pid: int, kind: str) -> str:
    """A name for two kinds that show in what everybody may read, where they are not ours."""
    if kind == "pid" and inner_pid(pid)[0] > inner_pid(os.getpid())[0]:
        return "pid, a level below ours"
    if kind == "user" and _ids(pid) not in ((), _ids(os.getpid())):
        return "user, with other ids than ours"
    return ""


def _ids(pid: int) -> tuple[tuple[int, int, int], ...]:
    try:
        with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ()
    return tuple((int(inside), int(outside), int(count)) for inside, outside, count in rows)
