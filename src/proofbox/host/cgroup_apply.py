"""Control groups made, read and removed. All of it is a few short system calls on a file system in memory."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from proofbox.errors import CreateFailed
from proofbox.host.cgroup import TOP, Controller, Place, Plan
from proofbox.host.threads import descendants
from proofbox.model.outcome import Usage

_TRIES: Final = 3
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.002


def begin(record: Path, place: Place, owner: str) -> tuple[str, ...]:
    """As ``prepare``, after it has written down in the file ``record``, in the owner's directory, where that will be.

    Who sweeps after it may live in another group itself, and would look for them in the wrong place. Raises ``OSError``
    too, if the file cannot be written.
    """
    record.write_text("".join(f"{root / TOP / owner}\n" for root in place.roots()))
    return prepare(place, owner)


def prepare(place: Place, owner: str) -> tuple[str, ...]:
    """Makes the owner's directories at the place, and hands the controllers down to them at v2.

    Returns them in the order in which they may be removed again. Safe to repeat. Raises ``CreateFailed``.
    """
    made: list[str] = []
    for root in place.roots():
        top = root / TOP
        mine = top / owner
        for attempt in range(_TRIES):
            try:
                top.mkdir(mode=0o755, exist_ok=True)
                mine.mkdir(mode=0o755, exist_ok=True)
                break
            except FileNotFoundError as error:  # the last other owner removed the top directory in between
                if attempt == _TRIES - 1:
                    raise CreateFailed(f"control group {mine}: {error.strerror}", "cgroup") from error
            except OSError as error:
                raise CreateFailed(f"control group {mine}: {error.strerror}", "cgroup") from error
        if place.version == 2:
            _hand_down(place, (root, top, mine))
        made += [str(mine), str(top)]
    return tuple(made)


def stand(groups: Sequence[str] | None) -> bool:
    """Whether what ``prepare`` made is there. Another runtime of this process removes it when it is closed, unless
    something is in it.
    """
    return groups is not None and all(map(os.path.isdir, groups))


def _hand_down(place: Place, groups: Iterable[Path]) -> None:
    _add_controllers((each for each in place.directories if each not in ("cpuacct", "cpuset")), groups)


def split_processors(place: Place, owner: str) -> Place:
    """Lets the groups of this owner have processors of their own. Before the first such group; safe to repeat.

    It is not part of ``prepare``: who sets no limit on processors pays nothing for it. Returns the place, without the
    controller where the kernel does not let us: it wants rights over every process below a v2 group for it, and in a
    delegated one there may be some of root's.
    """
    root = place.directories.get("cpuset")
    if root is None:
        return place
    groups = (root, root / TOP, root / TOP / owner)
    try:
        if place.version == 2:
            _add_controllers(("cpuset",), groups)
        else:
            _give_processors(groups)
    except (OSError, CreateFailed):
        left: dict[Controller, Path] = {each: path for each, path in place.directories.items() if each != "cpuset"}
        return replace(place, directories=left)
    return place


def _give_processors(groups: Iterable[Path]) -> None:
    for above, group in pairwise(groups):
        for name in ("cpus", "mems"):  # a v1 group has none until it is told, and nobody can join it
            if not (group / f"cpuset.{name}").read_text().strip():
                (group / f"cpuset.{name}").write_text((above / f"cpuset.effective_{name}").read_text())
        (group / "cgroup.clone_children").write_text("1")


def _add_controllers(wanted: Iterable[str], groups: Iterable[Path]) -> None:
    wanted = set(wanted)
    for group in groups:
        control = group / "cgroup.subtree_control"
        lacking = wanted - set(control.read_text().split())
        if not lacking:
            continue
        try:
            control.write_text(" ".join(f"+{controller}" for controller in sorted(lacking)))
        except OSError as error:
            raise CreateFailed(f"control group {control}: {error.strerror}", "cgroup") from error


def apply(plan: Plan, pid: int) -> None:
    """Carries a plan out for that process. Raises ``CreateFailed``; what was made is removed then."""
    made: list[str] = []
    try:
        for directory in plan.directories:
            os.mkdir(directory, 0o755)
            made.append(directory)
        for path, value in plan.values:
            _write(path, value or str(pid))
    except OSError as error:
        for directory in reversed(made):
            try:
                os.rmdir(directory)
            except OSError as busy:  # the process is in it already; whoever ends it calls `remove`
                if busy.errno != errno.EBUSY:
                    raise
        raise CreateFailed(f"control group {error.filename}: {error.strerror}", "cgroup") from error


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
    finally:
        os.close(fd)


def usage(plan: Plan) -> Usage:
    """What the group's counters say; None where there is no such counter, or the group is gone."""
    if plan.version == 2:
        return _usage_v2(plan.directories[0])
    paths = plan.by_controller
    memory, pids, cpu, cpuacct = (paths.get(each) for each in ("memory", "pids", "cpu", "cpuacct"))
    return Usage(
        cpu_user=_scaled(_number(cpuacct, "cpuacct.usage_user"), 1e-9),
        cpu_system=_scaled(_number(cpuacct, "cpuacct.usage_sys"), 1e-9),
        memory_peak=_number(memory, "memory.max_usage_in_bytes"),
        memory_now=_number(memory, "memory.usage_in_bytes"),
        oom_kills=_keyed(memory, "memory.oom_control", "oom_kill"),
        processes_now=_number(pids, "pids.current"),
        process_denials=_keyed(pids, "pids.events", "max"),
        throttled=_scaled(_keyed(cpu, "cpu.stat", "throttled_time"), 1e-9),
    )


def _usage_v2(directory: str) -> Usage:
    return Usage(
        cpu_user=_scaled(_keyed(directory, "cpu.stat", "user_usec"), 1e-6),
        cpu_system=_scaled(_keyed(directory, "cpu.stat", "system_usec"), 1e-6),
        memory_peak=_number(directory, "memory.peak"),
        memory_now=_number(directory, "memory.current"),
        oom_kills=_keyed(directory, "memory.events", "oom_kill"),
        processes_now=_number(directory, "pids.current"),
        process_denials=_keyed(directory, "pids.events", "max"),
        throttled=_scaled(_keyed(directory, "cpu.stat", "throttled_usec"), 1e-6),
        cpu_waits=_scaled(_waits(directory), 1e-6),
    )


def oom_kills(plan: Plan) -> int | None:
    """Processes of the group that the kernel killed for memory."""
    directory = plan.by_controller.get("memory")
    if plan.version == 2:
        return _keyed(directory, "memory.events", "oom_kill")
    return _keyed(directory, "memory.oom_control", "oom_kill")


def _text(directory: str | None, name: str) -> str | None:
    if directory is None:
        return None
    try:
        fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 4096).decode("ascii")
    except OSError as error:
        if error.errno == errno.ENODEV:  # removed since it was opened
            return None
        raise
    finally:
        os.close(fd)


def _number(directory: str | None, name: str) -> int | None:
    text = _text(directory, name)
    return int(text) if text else None


def _keyed(directory: str | None, name: str, key: str) -> int | None:
    for line in (_text(directory, name) or "").splitlines():
        found, _, value = line.partition(" ")
        if found == key:
            return int(value)
    return None


def _waits(directory: str) -> int | None:
    """Microseconds in which some process of the group waited for a processor; None where the kernel has no PSI."""
    try:
        first, _, _ = (_text(directory, "cpu.pressure") or "").partition("\n")
    except OSError:  # there, and switched off
        return None
    return int(first.rpartition("total=")[2]) if first else None


def _scaled(number: int | None, factor: float) -> float | None:
    return None if number is None else number * factor


def remove(directories: Iterable[str]) -> bool:
    """Removes groups once, the last one first; whether they are all gone. A busy one is left: try again."""
    gone = True
    for directory in reversed(tuple(directories)):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            gone = False
    return gone


def _remembered(record: Path, owner: str) -> tuple[Path, ...]:
    """What ``begin`` wrote. A file that was cut by a full disk or a crash gives the lines that make sense."""
    try:
        lines = record.read_text().splitlines()
    except FileNotFoundError:
        return ()
    return tuple(Path(line) for line in lines if line.endswith(f"/{TOP}/{owner}"))


def sweep_remembered(record: Path, place: Place, owner: str) -> int:
    """As ``sweep``, at the place and where the dead owner's ``record`` says, which is removed in the end."""
    found = sweep(place, owner, _remembered(record, owner))
    record.unlink(missing_ok=True)
    return found


def sweep(place: Place, owner: str, elsewhere: Iterable[Path] = ()) -> int:
    """Ends and removes all groups of a dead owner: at the place, and in the directories of ``elsewhere``.

    Returns how many there were. Blocks up to seconds: run it in a thread.
    """
    found = 0
    for mine in dict.fromkeys([*(root / TOP / owner for root in place.roots()), *elsewhere]):
        if not mine.is_dir():
            continue
        groups = [str(group) for group in mine.iterdir() if group.is_dir()]
        found += len(groups)
        until = time.monotonic() + _PATIENCE_S
        while not remove(groups) and time.monotonic() < until:
            for group in groups:
                kill(group)
            time.sleep(_PAUSE_S)
        remove((str(mine.parent), str(mine)))
    return found


def kill(group: str) -> None:
    """Ends every process that is in the group now."""
    try:
        _write(f"{group}/cgroup.kill", "1")
        return
    except FileNotFoundError:
        pass
    for pid in members(group):
        _kill_member(group, pid)


def members(group: str) -> list[int]:
    """The processes that are in the group now; none if it is gone."""
    try:
        return [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def inhabitants(plan: Plan, root: int) -> list[int]:
    """The processes of one sandbox: its groups' members, or without groups what descends from ``root``."""
    if plan.directories:
        return members(plan.directories[0])
    return descendants(root) if root else []


def _kill_member(group: str, pid: int) -> None:
    """The number may belong to somebody else by now: the process is held first, then looked at, then ended."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid in members(group):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(held)
