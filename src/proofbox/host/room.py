"""How many sandboxes this host can hold at one time: what each takes of every limit, and how much of it is left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.host.apart import NAMESPACES
from proofbox.host.cgroup import own_groups
from proofbox.host.memory import free_memory
from proofbox.model.limits import MIB

AT_ONCE: Final = 32
"""Sandboxes that may be in the making."""
MAKING: Final = 5 * AT_ONCE
"""Descriptors that are wanted for that, beside those of the sandboxes."""
UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """What one sandbox takes of the host while it runs one command, at most.

    files       descriptors of this process
    all_files   open files of the whole machine
    tasks       processes and threads; ``per_command`` more for the command, and ``starting`` more while it is made
    namespaces  of each kind, where it is not one
    memory      bytes, idle
    watches     inotify instances of its user here, if one program in it watches files
    inodes      in the state directory
    """

    files: int = 3
    all_files: int = 48
    tasks: int = 4
    per_command: int = 2
    starting: int = 0
    namespaces: tuple[tuple[str, int], ...] = tuple((kind, 1) for kind in NAMESPACES)
    memory: int = MIB
    watches: int = 1
    inodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One limit: ``used`` of ``limit`` is taken, and each sandbox takes ``each``.

    ``hard``: the first sandbox for which there is none left cannot be made. Else what runs inside may run short.
    """

    what: str
    limit: int
    used: int
    each: int
    remedy: str
    hard: bool = True

    @property
    def holds(self) -> int:
        """So many sandboxes more."""
        return max(0, self.limit - self.used) // self.each

    def raised(self, sandboxes: int) -> str:
        """What makes it suffice for so many: the remedy, with a round number."""
        return self.remedy.replace("{}", str(1 << (self.used + self.each * sandboxes).bit_length()))

    def told(self, sandboxes: int) -> str:
        """One sentence with the numbers, and the remedy."""
        fits = f"there is room for {self.holds} of {sandboxes} sandboxes"
        if not self.hard:
            fits = f"if they use what they may, {fits}"
        numbers = f"{self.what}: {fits} ({self.used} of {self.limit} are used, each takes {self.each})"
        return f"{numbers}; {self.raised(sandboxes)}"


def rooms(takes: Takes, state: Path, memory: int | None = None, root: Path = Path("/")) -> tuple[Room, ...]:
    """Every limit that sandboxes take something of, the tightest first. Some milliseconds.

    ``memory`` is a sandbox's limit on it, ``state`` the directory of live state. ``root`` stands for "/" in tests.
    """
    found = [*_files(takes, root), *_tasks(takes, root), *_namespaces(takes, root), *_watches(takes, root)]
    found += [*_memory(takes, memory), *_state(takes, state)]
    return tuple(sorted(found, key=lambda room: room.holds))


def short(found: Iterable[Room], sandboxes: int) -> list[Room]:
    """Those in which so many do not fit."""
    return [room for room in found if room.holds < sandboxes]


def _files(takes: Takes, root: Path) -> list[Room]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = len(os.listdir("/proc/self/fd"))
    remedy = "ulimit -n {}" if hard == resource.RLIM_INFINITY or soft < hard else "as root: ulimit -n {}"
    found = [
        Room(
            what="open files of this process",
            limit=UNLIMITED if soft == resource.RLIM_INFINITY else soft,
            used=own + MAKING,
            each=takes.files,
            remedy=f"{remedy} (LimitNOFILE= at systemd, --ulimit nofile= at docker)",
        )
    ]
    counted = _words(root / "proc/sys/fs/file-nr")
    most = _number(root / "proc/sys/fs/file-max")
    if most is not None and counted:
        found.append(
            Room(
                what="open files of this machine",
                limit=most,
                used=int(counted[0]),
                each=takes.all_files,
                remedy="sysctl -w fs.file-max={}",
            )
        )
    return found


def _tasks(takes: Takes, root: Path) -> list[Room]:
    """Processes and threads, by everything that limits them."""
    each = takes.tasks + takes.per_command
    load = _words(root / "proc/loadavg")
    running = int(load[3].partition("/")[2]) if len(load) > 3 else 0
    making = AT_ONCE * takes.starting
    found = []
    for name in ("pid_max", "threads-max"):
        most = _number(root / "proc/sys/kernel" / name)
        if most is not None:
            what = "process ids" if name == "pid_max" else "threads of this machine"
            remedy = f"sysctl -w kernel.{name}={{}}"
            found.append(Room(what=what, limit=most, used=running + making, each=each, remedy=remedy))
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and soft != resource.RLIM_INFINITY:
        remedy = "as root: ulimit -u {} (LimitNPROC= at systemd, /etc/security/limits.conf)"
        used = _tasks_of(os.geteuid()) + making
        found.append(Room(what="processes of this user", limit=soft, used=used, each=each, remedy=remedy))
    for group in own_groups("pids"):
        most, counted = _number(group / "pids.max"), _number(group / "pids.current")
        if most is not None and counted is not None:
            remedy = "more of it: TasksMax= at systemd, --pids-limit at docker, pids.max={} there"
            what = f"processes of the group {group}"
            found.append(Room(what=what, limit=most, used=counted + making, each=each, remedy=remedy))
    return found


def _namespaces(takes: Takes, root: Path) -> list[Room]:
    """A kernel that has none of a kind has no switch for it. Their use is what can be seen of it."""
    found = []
    limits = {kind: _number(root / f"proc/sys/user/max_{kind}_namespaces") for kind, _ in takes.namespaces}
    seen = _seen_namespaces([kind for kind, limit in limits.items() if limit is not None])
    for kind, each in takes.namespaces:
        limit = limits[kind]
        if limit is not None:
            remedy = f"sysctl -w user.max_{kind}_namespaces={{}}"
            found.append(Room(what=f"{kind} namespaces", limit=limit, used=seen[kind], each=each, remedy=remedy))
    return found


def _watches(takes: Takes, root: Path) -> list[Room]:
    """The kernel counts what watches files inside of all sandboxes together, for who made them."""
    most = _number(root / "proc/sys/fs/inotify/max_user_instances")
    if most is None or not takes.watches:
        return []
    what = "inotify instances of this user, all of its sandboxes together"
    remedy = "sysctl -w fs.inotify.max_user_instances={}"
    return [Room(what=what, limit=most, used=0, each=takes.watches, remedy=remedy, hard=False)]


def _memory(takes: Takes, memory: int | None) -> list[Room]:
    free = free_memory()
    remedy = "add memory, or open fewer at a time"
    found = [Room(what="bytes of memory", limit=free, used=0, each=takes.memory, remedy=remedy)]
    if memory:
        remedy = "lower the limit `memory`, or open fewer at a time"
        what = "bytes of memory by their limits"
        found.append(Room(what=what, limit=free, used=0, each=max(memory, takes.memory), remedy=remedy, hard=False))
    return found


def _state(takes: Takes, state: Path) -> list[Room]:
    if not takes.inodes:
        return []
    counted = os.statvfs(state)
    if not counted.f_files:  # a file system that makes them as they are needed
        return []
    remedy = f"free some inodes on the file system of {state}, or set PROOFBOX_STATE to a directory elsewhere"
    used = counted.f_files - counted.f_favail
    return [Room(what=f"inodes at {state}", limit=counted.f_files, used=used, each=takes.inodes, remedy=remedy)]


def _tasks_of(uid: int) -> int:
    count = 0
    for pid in _processes():
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has ended
            continue
    return count


def _seen_namespaces(kinds: Sequence[str]) -> dict[str, int]:
    seen: dict[str, set[str]] = {kind: set() for kind in kinds}
    for pid in _processes():
        for kind in kinds:
            try:
                seen[kind].add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:  # it has ended, or is not for us to look at
                continue
    return {kind: len(names) for kind, names in seen.items()}


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where it is not there, or says ``max``."""
    words = _words(path)
    return int(words[0]) if words and words[0].isdecimal() else None
