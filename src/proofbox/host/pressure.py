"""What else the host was doing: two looks, and what lies between them. Some ten short reads each, no wait."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Final

from proofbox.host.cgroup import own_groups
from proofbox.model.evidence import Pressure

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RESOURCES: Final = ("cpu", "io", "memory")


@dataclass(frozen=True, slots=True)
class Look:
    """Counters of one moment. Seconds; CPU seconds on the processors that we may use. None where there is none."""

    at: float
    cpus: int
    busy: float | None
    steal: float
    throttled: float | None
    waits: dict[str, float] = field(default_factory=dict)


def look() -> Look:
    """The counters now."""
    busy, steal, cpus = _processors()
    waits = {name: total for name in _RESOURCES if (total := _psi(f"/proc/pressure/{name}")) is not None}
    return Look(perf_counter(), cpus, busy, steal, _throttled(), waits)


def between(first: Look, last: Look, own: float | None) -> Pressure:
    """What happened from one look to another. ``own``: CPU seconds that are not others'."""
    seconds = max(last.at - first.at, 1e-9)
    others = None
    if first.busy is not None and last.busy is not None and own is not None:
        others = max(0.0, last.busy - first.busy - own)
    shares = {name: min(1.0, (last.waits[name] - was) / seconds) for name, was in first.waits.items()}
    throttled = None
    if first.throttled is not None and last.throttled is not None:
        throttled = last.throttled - first.throttled
    return Pressure(cpus=last.cpus, others=others, steal=last.steal - first.steal, throttled=throttled, **shares)


def processors() -> int:
    """How many we may use."""
    return len(os.sched_getaffinity(0))


def _processors() -> tuple[float | None, float, int]:
    """CPU seconds since boot in use and stolen, over the processors that we may use, and how many these are."""
    mine = os.sched_getaffinity(0)
    busy = steal = 0.0
    found = 0
    with open("/proc/stat", encoding="ascii") as file:
        next(file)
        for line in file:
            name, *values = line.split()
            if not name.startswith("cpu"):
                break
            if int(name[3:]) in mine:
                user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, values[:8])
                busy += user + nice + system + irq + softirq + stolen
                steal += stolen
                found += 1
    # Sandboxes like gVisor's show a /proc/stat of zeros.
    return (busy / _TICKS if found and busy else None), steal / _TICKS, len(mine)


def _psi(path: str) -> float | None:
    """Seconds since boot in which some task waited."""
    try:
        with open(path, "rb") as file:
            first = file.readline()
    except OSError:  # no PSI in this kernel, or switched off
        return None
    return int(first.rpartition(b"total=")[2]) / 1e6


def _throttled() -> float | None:
    """CPU seconds for which quotas around this process held it back; None if there is no such counter."""
    found = [seconds for group in _around() if (seconds := _held_back(group)) is not None]
    return sum(found) if found else None


def _held_back(group: Path) -> float | None:
    try:
        text = (group / "cpu.stat").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "throttled_usec":
            return int(value) / 1e6
        if key == "throttled_time":
            return int(value) / 1e9
    return None


@cache
def _around() -> tuple[Path, ...]:
    """The groups that hold this process, where one of them has a quota; asked once."""
    return own_groups("cpu")
