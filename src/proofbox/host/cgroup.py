"""Control groups, v2 and v1: where ours may be, and what is written to make one for a sandbox.

    <place>/proofbox/<owner id>/<sandbox id>

Finding the place reads files; a plan is a pure value. Who carries it out differs: the launcher for ``native``,
``cgroup_apply`` for the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from proofbox.model.limits import LimitKind, Limits

Controller = Literal["memory", "pids", "cpu", "cpuacct", "cpuset"]
CONTROLLERS: Final[tuple[Controller, ...]] = ("memory", "pids", "cpu", "cpuacct", "cpuset")
BY_LIMIT: Final[frozenset[Controller]] = frozenset({"cpu", "cpuset"})
"""Of which only a sandbox with a limit on processors has a group of its own, at v1."""

PROCESS_RESERVE: Final = 16
"""Processes over the limit on them for the guest and the supervisors that it puts above commands."""

PERIOD_US: Final = 100_000
LEAST_QUOTA_US: Final = 1_000
"""The kernel takes no smaller CPU quota."""

TOP: Final = "proofbox"


@dataclass(frozen=True, slots=True)
class Place:
    """Directories below which our groups are made, by controller. At v2 they are all the same directory.

    ``missing`` says in words why a controller has none.
    """

    version: int
    directories: Mapping[Controller, Path]
    swap: bool = False
    """Swap can be limited."""
    missing: tuple[str, ...] = ()
    crowded: Path | None = None
    """Our own v2 group, if it could have groups below it but for its processes: see ``cgroup_room``."""

    def roots(self) -> tuple[Path, ...]:
        """The distinct directories."""
        return tuple(dict.fromkeys(self.directories.values()))

    def enforces(self) -> frozenset[LimitKind]:
        """The limits that groups at this place enforce."""
        kinds: Mapping[LimitKind, Controller] = {
            "memory": "memory",
            "memory_reserve": "memory",
            "processes": "pids",
            "cpus": "cpu",
            "cpu_time": "cpuacct",
            "command_cpu_time": "cpuacct",
        }
        return frozenset(kind for kind, controller in kinds.items() if controller in self.directories)


NOWHERE: Final = Place(0, {}, missing=("no control group hierarchy that this process may write",))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in order: make ``directories``, then write ``values``; the value "" stands for the process id."""

    directories: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    by_controller: Mapping[Controller, str] = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True, slots=True)
class _Mount:
    root: str
    point: str
    kind: str
    options: frozenset[str]
    readonly: bool


def find_place(root: Path = Path("/")) -> Place:
    """The best place for groups of this process; ``NOWHERE`` if there is none. ``root`` stands for "/" in tests.

    Mixed hosts (v1 controllers beside an empty v2 hierarchy) count as what holds the memory controller.
    """
    mounts = _mounts((root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    own = _own((root / "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape"))
    version_1 = _find_v1(root, mounts, own)
    if "memory" in version_1.directories:
        return version_1
    version_2 = _find_v2(root, mounts, own.get("", "/"))
    if version_2.directories:
        return version_2
    return version_1 if version_1.directories else _nowhere(version_1, version_2)


def own_groups(controller: Controller) -> tuple[Path, ...]:
    """The groups that hold this process in the hierarchy of that controller: its own, and those above that it can see.

    Empty where there is no such hierarchy.
    """
    root = Path("/")
    mounts = _mounts((root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    own = _own((root / "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape"))
    version_1 = next((each for each in mounts if each.kind == "cgroup" and controller in each.options), None)
    mount = version_1 or next((each for each in mounts if each.kind == "cgroup2"), None)
    path = own.get(controller if version_1 else "")
    if mount is None or path is None:
        return ()
    here, point = _directory(root, mount, path), root / mount.point.lstrip("/")
    return (here, *(parent for parent in here.parents if parent.is_relative_to(point)))


def _nowhere(*tried: Place) -> Place:
    reasons = tuple(reason for place in tried for reason in place.missing)
    crowded = next((place.crowded for place in tried if place.crowded), None)
    return Place(0, {}, missing=reasons or NOWHERE.missing, crowded=crowded)


def _mounts(mountinfo: str) -> list[_Mount]:
    found: list[_Mount] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 6 or len(rest) < 3 or rest[0] not in ("cgroup", "cgroup2"):
            continue
        readonly = "ro" in fields[5].split(",") or "ro" in rest[2].split(",")
        options = frozenset(rest[2].split(","))
        found.append(_Mount(_unescape(fields[3]), _unescape(fields[4]), rest[0], options, readonly))
    return found


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _own(text: str) -> dict[str, str]:
    """Path of our own group by controller; "" is the v2 hierarchy."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    return own


def _directory(root: Path, mount: _Mount, own: str) -> Path:
    """Where our own group lies below the mount; the mount itself if it is not to be seen there (a container)."""
    point = root / mount.point.lstrip("/")
    prefix = mount.root.rstrip("/")
    if own == prefix or own.startswith(prefix + "/"):
        inside = point / own[len(prefix) :].lstrip("/")
        if inside.is_dir():
            return inside
    return point


def _find_v1(root: Path, mounts: list[_Mount], own: Mapping[str, str]) -> Place:
    directories: dict[Controller, Path] = {}
    closed: list[str] = []
    for controller in CONTROLLERS:
        mount = next((each for each in mounts if each.kind == "cgroup" and controller in each.options), None)
        if mount is None or controller not in own:
            continue
        directory = _directory(root, mount, own[controller])
        if mount.readonly or not os.access(directory, os.W_OK):
            closed.append(f"{directory} ({controller})")
        else:
            directories[controller] = directory
    memory = directories.get("memory")
    swap = memory is not None and (memory / "memory.memsw.limit_in_bytes").exists()
    why = f"control groups that uid {os.geteuid()} cannot write: {', '.join(closed)}"
    return Place(1, directories, swap, (why,) if closed else ())


def _find_v2(root: Path, mounts: list[_Mount], own: str) -> Place:
    """Ours are made in the root group if we may write it, else in the nearest group above us that may have children.

    A group with processes of its own cannot hand controllers down (but for the root group), so our own group serves
    only if somebody split it before; a delegated tree is one where a group above us is ours.
    """
    mount = next((each for each in mounts if each.kind == "cgroup2"), None)
    if mount is None:
        return Place(2, {})
    point = root / mount.point.lstrip("/")
    if mount.readonly:
        return Place(2, {}, missing=(f"{point} is mounted read-only, as in a container",))
    here = _directory(root, mount, own)
    above = [here, *(parent for parent in here.parents if parent.is_relative_to(point))]
    if os.geteuid() == 0 and mount.root == "/" and not (point / "cgroup.type").exists():
        above = [point, *above]
    for group in above:
        usable = _usable_v2(group, root_group=not (group / "cgroup.type").exists())
        if usable:
            return Place(2, dict.fromkeys(usable, group), swap=True)
    return Place(
        2,
        {},
        missing=(f"no control group from {here} up to {point} is delegated, with controllers, to uid {os.geteuid()}",),
        # As the root group it would be asked whether it could split if nobody were in it.
        crowded=here if _usable_v2(here, root_group=True) else None,
    )


def _usable_v2(group: Path, *, root_group: bool) -> tuple[Controller, ...]:
    """Controllers that children of this group have or can be given."""
    wanted = {"memory", "pids", "cpu", "cpuset"}
    try:
        available = set((group / "cgroup.controllers").read_text().split()) & wanted
        given = set((group / "cgroup.subtree_control").read_text().split()) & wanted
        occupied = bool((group / "cgroup.procs").read_text().strip()) and not root_group
    except OSError:
        return ()
    writable = all(os.access(group / name, os.W_OK) for name in ("cgroup.procs", "cgroup.subtree_control"))
    if not writable or not os.access(group, os.W_OK):
        return ()
    usable = given if occupied else available
    if not usable:
        return ()
    # Every v2 group counts CPU time, with or without the cpu controller.
    return tuple(controller for controller in CONTROLLERS if controller in usable or controller == "cpuacct")


def plan_group(place: Place, owner: str, sandbox: str, limits: Limits, processors: Sequence[int] = ()) -> Plan:
    """The plan for one sandbox. A limit that the place cannot enforce is not in it: refuse it before.

    ``processors`` are those that it may run on, none for all; ``cgroup_apply.split_processors`` comes before.
    """
    if not place.directories:
        return Plan()
    if place.version == 2:
        return _plan_v2(place, owner, sandbox, limits, processors)
    own = set(place.directories) - BY_LIMIT
    own |= {"cpu"} if limits.cpus is not None else set()
    own |= {"cpuset"} if processors else set()
    wanted = [each for each in CONTROLLERS if each in place.directories and each in own]
    paths = {each: f"{place.directories[each]}/{TOP}/{owner}/{sandbox}" for each in wanted}
    values: list[tuple[str, str]] = []
    if limits.memory is not None and "memory" in paths:
        values.append((f"{paths['memory']}/memory.limit_in_bytes", str(limits.memory)))
        if place.swap:
            values.append((f"{paths['memory']}/memory.memsw.limit_in_bytes", str(limits.memory)))
        else:
            values.append((f"{paths['memory']}/memory.swappiness", "0"))
    if limits.memory_reserve is not None and "memory" in paths:
        values.append((f"{paths['memory']}/memory.soft_limit_in_bytes", str(limits.memory_reserve)))
    if limits.processes is not None and "pids" in paths:
        values.append((f"{paths['pids']}/pids.max", str(limits.processes + PROCESS_RESERVE)))
    if limits.cpus is not None and "cpu" in paths:
        values.append((f"{paths['cpu']}/cpu.cfs_period_us", str(PERIOD_US)))
        values.append((f"{paths['cpu']}/cpu.cfs_quota_us", str(_quota(limits.cpus))))
    if "cpuset" in paths:
        values.append((f"{paths['cpuset']}/cpuset.cpus", ",".join(map(str, processors))))
    directories = tuple(dict.fromkeys(paths.values()))
    values += [(f"{directory}/cgroup.procs", "") for directory in directories]
    return Plan(directories, tuple(values), paths, 1)


def advance_roots(place: Place, owner: str) -> tuple[str, ...]:
    """Directories in which every sandbox of this owner gets a group, and which let a group be renamed.

    There a group can be made before it is known whose it will be. Version 2 knows no renaming.
    """
    if place.version == 2:
        return ()
    found = (f"{directory}/{TOP}/{owner}" for each, directory in place.directories.items() if each not in BY_LIMIT)
    return tuple(dict.fromkeys(found))


def _plan_v2(place: Place, owner: str, sandbox: str, limits: Limits, processors: Sequence[int]) -> Plan:
    directory = f"{place.roots()[0]}/{TOP}/{owner}/{sandbox}"
    values: list[tuple[str, str]] = []
    if limits.memory is not None and "memory" in place.directories:
        values.append((f"{directory}/memory.max", str(limits.memory)))
        if place.swap:
            values.append((f"{directory}/memory.swap.max", "0"))
    if limits.memory_reserve is not None and "memory" in place.directories:
        # A group is protected no more than those above it, so ours above it have no bound of their own.
        above = os.path.dirname(directory)
        values += [(f"{group}/memory.low", "max") for group in (os.path.dirname(above), above)]
        values.append((f"{directory}/memory.low", str(limits.memory_reserve)))
    if limits.processes is not None and "pids" in place.directories:
        values.append((f"{directory}/pids.max", str(limits.processes + PROCESS_RESERVE)))
    if limits.cpus is not None and "cpu" in place.directories:
        values.append((f"{directory}/cpu.max", f"{_quota(limits.cpus)} {PERIOD_US}"))
    if processors and "cpuset" in place.directories:
        values.append((f"{directory}/cpuset.cpus", ",".join(map(str, processors))))
    values.append((f"{directory}/cgroup.procs", ""))
    return Plan((directory,), tuple(values), dict.fromkeys(place.directories, directory), 2)


def _quota(cpus: float) -> int:
    return max(LEAST_QUOTA_US, round(cpus * PERIOD_US))
