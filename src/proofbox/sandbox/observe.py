"""Looks at a sandbox from outside while the clock of a limit runs, so that it can be said later whose doing it was.

Nothing happens before a command has run for a tenth of a second: short ones pay a timer that never fires. Then it is
looked at some fifty times until its deadline, each time for about a tenth of a millisecond a process, and never for
more than a few percent of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter
from typing import Final, Literal

import msgspec

from proofbox.host import pressure, threads
from proofbox.host.threads import Process, Thread
from proofbox.kit.loop import Stop, later
from proofbox.model.evidence import Evidence
from proofbox.model.outcome import Usage
from proofbox.sandbox.lifecycle import Life

FIRST: Final = 0.1
"""Seconds until the first look."""
LOOKS: Final = 50
SHORTEST, LONGEST = 0.05, 30.0
"""Seconds between looks."""
BEFORE: Final = 0.03
"""Seconds before the deadline at which the last look is due: after it the processes are gone."""
BUDGET: Final = 30
"""The time between looks is at least so many times what a look takes."""
MOST: Final = 128
"""Threads that are looked at: the event loop must not be held up for more than some milliseconds."""
ON_TIME: Final = 0.01
"""Seconds by which a timer may be late on an idle host."""
EARLY: Final = 0.02
"""Seconds by which the kernel's word of when a process was born may be early: it counts in clock ticks."""
UNSEEN: Final = 0.1
"""Share of the CPU time used by threads that no look has met, from which on sampling is trusted more than sums."""
GRAIN, TICKS = 0.002, 0.02
"""CPU seconds by which a group's counter, and the sum of what processes say in clock ticks, may be off."""
STILL: Final = 0.02
"""CPU seconds a second below which nothing moves: guests and timers take some."""
DESCRIBED, NAMED = 32, 12
"""Threads of which is told what they are in, and of which the kernel's own words are kept."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at one moment. ``processes`` are the command's; ``whole`` is the CPU time of the whole sandbox."""

    at: float
    usage: Usage
    processes: Sequence[Process]
    threads: dict[int, Thread]
    runnable: int
    asleep: Literal["", "disk", "stuck"]
    cpu: float
    whole: float
    mixed: bool
    moved: dict[int, int]
    counts: bool


_NOTHING: Final = Evidence(elapsed=0.0)
_UNSEEN_STATES: Final[tuple[dict[str, int], tuple[str, ...]]] = ({}, ())


class Watch:
    """Watches one command of a sandbox for ``limit`` seconds from now on, or until it is stopped.

    ``pid``: its number inside, once it is known. ``counts`` says whether the clock runs at this moment, None is always;
    then the deadline is the caller's, and it is looked at until ``stop``. ``on_look`` is called after each look.
    """

    __slots__ = (
        *("_begun", "_counts", "_deadline", "_due", "_every", "_first", "_last", "_life", "_missing", "_on_look"),
        *("_pid", "_root", "_states", "_stopped", "_sum", "_timer"),
    )

    def __init__(
        self,
        life: Life,
        limit: float,
        pid: Callable[[], int | None],
        counts: Callable[[], bool] | None = None,
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._life = life
        self._pid = pid
        self._counts = counts
        self._on_look = on_look
        self._stopped = False
        self._begun = perf_counter()
        self._deadline = self._begun + limit
        self._every = min(max(limit / LOOKS, SHORTEST), LONGEST)
        self._root: int | None = None
        self._states = _UNSEEN_STATES
        self._first: tuple[_Look, pressure.Look] | None = None
        self._last: tuple[_Look, pressure.Look] | None = None
        self._sum = _NOTHING
        self._missing: dict[str, None] = {}
        self._due = self._begun + min(max(FIRST, self._every), 0.4 * limit)
        self._timer: Stop = later(self._due - self._begun, self._tick)

    def stop(self) -> None:
        """No more looks. Idempotent."""
        self._stopped = True
        self._timer()

    def look(self) -> None:
        """Looks now. At a runtime that cannot be looked into nothing happens, and on a host without Linux's /proc."""
        try:
            seen = self._seen()
            host = pressure.look()
        except (OSError, ValueError, LookupError) as error:
            # Called by a timer, where nobody could catch it; without this look the evidence is thinner, that is all.
            self._missing[f"a look failed: {type(error).__name__}: {error}"] = None
            return
        if seen is None:
            self._missing["this runtime cannot be looked into from outside"] = None
            return
        if not seen.processes:
            return
        if self._last is not None:
            self._add(self._last[0], seen)
        self._last = (seen, host)
        self._first = self._first or self._last
        self._states = _described(seen.processes, self._root)

    def evidence(
        self, elapsed: float, usage: Usage | None = None, *, allowed: float | None = None, served: bool = False
    ) -> Evidence:
        """What was seen. ``usage``: the sandbox's counters now, if it is still there; the rest as in ``Evidence``."""
        if self._first is None or self._last is None:
            missing = tuple(self._missing) or ("it was never looked at",)
            return Evidence(elapsed=elapsed, allowed=allowed, served=served, missing=missing)
        (first, host_first), (last, host_last) = self._first, self._last
        span = last.at - first.at
        host = pressure.between(host_first, host_last, last.whole - first.whole)
        if span > 0 and self._counts is not None and host.others is not None:
            host = msgspec.structs.replace(host, others=host.others * self._sum.seen / span)
        usage = usage or last.usage
        states, blocked = self._states
        return msgspec.structs.replace(
            self._sum,
            elapsed=elapsed,
            allowed=allowed,
            cpu_user=_less(last.usage.cpu_user, first.usage.cpu_user),
            cpu_system=_less(last.usage.cpu_system, first.usage.cpu_system),
            throttled=_less(last.usage.throttled, first.usage.throttled),
            waits=_less(last.usage.cpu_waits, first.usage.cpu_waits),
            share=self._share(),
            states=states,
            blocked=blocked,
            process_denials=usage.process_denials,
            memory_peak=usage.memory_peak,
            oom_kills=usage.oom_kills,
            disk=usage.disk,
            host=host,
            served=served,
            missing=tuple(self._missing),
        )

    def _tick(self) -> None:
        begun = perf_counter()
        late = begun - self._due - ON_TIME
        if late > 0:
            self._sum = msgspec.structs.replace(self._sum, lag=self._sum.lag + late)
        self.look()
        if self._on_look is not None:
            self._on_look()
        now = perf_counter()
        self._due = now + max(self._every, BUDGET * (now - begun))
        if self._counts is None:
            last = self._deadline - BEFORE
            if now >= last:
                return
            self._due = min(self._due, last)
        if not self._stopped:
            self._timer = later(self._due - now, self._tick)

    def _share(self) -> float:
        cpus = self._life.spec.limits.cpus
        mine = float(pressure.processors())
        return mine if cpus is None else min(cpus, mine)

    def _seen(self) -> _Look | None:
        observed = self._life.observe()
        if observed is None:
            return None
        pids, usage = observed
        everything, complete = threads.processes(pids[:MOST], MOST)
        if not complete or len(pids) > MOST:
            self._missing[f"only the first {MOST} of its threads were looked at"] = None
        processes = self._own(everything)
        found = {thread.id: thread for process in processes for thread in process.threads}
        runnable = sum(thread.state == "R" for thread in found.values())
        sleeps = {threads.uninterruptible(thread) for thread in found.values()} if not runnable else set()
        asleep: Literal["", "disk", "stuck"] = "disk" if "disk" in sleeps else "stuck" if "stuck" in sleeps else ""
        moved = {p.pid: m for p in processes if (m := threads.moved(p.pid)) is not None} if asleep else {}
        mixed = self._root is not None and _others(everything, processes, self._root)
        cpu = sum(process.cpu for process in processes)
        whole = sum(process.cpu for process in everything)
        if usage.cpu_user is not None and usage.cpu_system is not None:
            whole = usage.cpu_user + usage.cpu_system
        counts = self._counts is None or self._counts()
        return _Look(perf_counter(), usage, processes, found, runnable, asleep, cpu, whole, mixed, moved, counts)

    def _own(self, everything: list[Process]) -> list[Process]:
        """The command's: its supervisor, which the guest gave it, and what is below."""
        if self._root is None and self._life.shares_kernel:
            self._root = supervisor_of(everything, self._pid(), perf_counter() - self._begun)
        own = threads.below(everything, self._root) if self._root is not None else []
        if not own:
            self._missing["which of the sandbox's processes were the command's could not be told"] = None
        return own or everything

    def _add(self, before: _Look, now: _Look) -> None:
        """Adds what lies between two looks."""
        seconds = now.at - before.at
        if not before.counts or not now.counts or seconds <= 0:
            return
        share = self._share()
        # The group's counter forgets no process, but it counts the command's neighbours too.
        alone = not before.mixed and not now.mixed
        used = max(0.0, now.whole - before.whole if alone else now.cpu - before.cpu)
        ran, waited, pending = _thread_sums(before, now)
        busy = ran + waited + pending * seconds
        ended = not before.threads.keys() <= now.threads.keys()
        grain = GRAIN if alone and now.usage.cpu_user is not None else TICKS
        churn = ended or used - ran > UNSEEN * used + grain or any(t.ran < 0 for t in now.threads.values())
        wanted, wanting = busy, min(seconds, busy)
        if churn:
            # Who came and went between the looks took its waiting along. Two ways to tell it: how many wanted to run at
            # the looks, which counts some twice, and how long those waited that are known. Both can only be too large.
            sampled = seconds * (before.runnable + now.runnable) / 2
            scaled = used * (ran + waited) / ran if ran > 0 else inf
            wanted = max(busy, used, min(sampled, scaled))
            wanting = max(wanting, min(seconds, used), seconds * ((before.runnable > 0) + (now.runnable > 0)) / 2)
        moving = max(used, busy) > STILL * seconds or now.runnable > 0
        total = self._sum
        self._sum = msgspec.structs.replace(
            total,
            seen=total.seen + seconds,
            looks=total.looks + 1 + (total.looks == 0),
            cpu=(total.cpu or 0.0) + used,
            wanted=(total.wanted or 0.0) + min(share * seconds, max(wanted, used)),
            wanting=total.wanting + wanting,
            waited=total.waited + waited,
            disk_wait=total.disk_wait + seconds * _halves(before, now, "disk"),
            stuck=total.stuck + seconds * _halves(before, now, "stuck"),
            moved=_moved(total.moved, before.moved, now.moved),
            still=0.0 if moving else total.still + seconds,
            churn=total.churn + churn,
            processes=max(total.processes, len(before.processes), len(now.processes)),
        )


def _thread_sums(before: _Look, now: _Look) -> tuple[float, float, int]:
    """Seconds that the threads ran and waited between two looks, and how many waited all the time without a turn."""
    ran = waited = pending = 0
    for thread in now.threads.values():
        if thread.ran < 0:
            continue
        was = before.threads.get(thread.id)
        if was is None or was.ran > thread.ran:  # born since, or another one with the number of one that ended
            ran, waited = ran + thread.ran, waited + thread.waited
            continue
        some = thread.ran - was.ran + thread.waited - was.waited
        ran, waited = ran + thread.ran - was.ran, waited + thread.waited - was.waited
        pending += not some and thread.state == was.state == "R"
    return ran / 1e9, waited / 1e9, pending


def _halves(before: _Look, now: _Look, asleep: str) -> float:
    """The share of the time between two looks that was slept like that."""
    return ((before.asleep == asleep) + (now.asleep == asleep)) / 2


def _moved(total: int | None, before: dict[int, int], now: dict[int, int]) -> int | None:
    if not before or not now:
        return total
    return (total or 0) + sum(max(0, moved - before[pid]) for pid, moved in now.items() if pid in before)


def _less(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def supervisor_of(everything: Sequence[Process], pid: int | None, age: float) -> int | None:
    """The process above a command, which is a child of the guest.

    ``pid`` is the command's number inside, if the guest told it: its word, so it only chooses among the sandbox's own
    processes. Without it, it is the one whose child was born next after the command was asked for, ``age`` seconds ago.
    """
    depths = {process.pid: threads.inner_pid(process.pid) for process in everything}
    deepest = max((depth for depth, _ in depths.values()), default=0)
    inside = {process.pid: process for process in everything if depths[process.pid][0] == deepest}
    tops = {process.pid for process in inside.values() if process.parent not in inside}
    commands = [each for each in inside.values() if each.parent in inside and inside[each.parent].parent in tops]
    if pid is not None:
        return next((each.parent for each in commands if depths[each.pid][1] == pid), None)
    asked = clock_gettime(CLOCK_BOOTTIME) - age
    after = [each for each in commands if each.born >= asked - EARLY]
    return min(after, key=lambda each: each.born).parent if after else None


def _others(everything: Sequence[Process], own: Sequence[Process], root: int) -> bool:
    """There are processes that are neither of the command nor above it, nor a supervisor that waits for its command."""
    known = {process.pid: process for process in everything}
    parents = {process.parent for process in everything}
    mine = {process.pid for process in own}
    top = known[root].parent if root in known else None
    mine.update(process.pid for process in everything if process.parent == top and process.pid not in parents)
    above: int | None = root
    while above in known:
        mine.add(above)
        above = known[above].parent
    return len(mine) < len(known)


def _described(processes: Sequence[Process], root: int | None) -> tuple[dict[str, int], tuple[str, ...]]:
    """What the threads of the programs are in; the supervisor above them is none."""
    states: dict[str, int] = {}
    blocked: list[str] = []
    for process in processes:
        for thread in process.threads if process.pid != root else ():
            if sum(states.values()) >= DESCRIBED:
                return states, tuple(blocked)
            word, place = threads.waits_in(thread)
            states[word] = states.get(word, 0) + 1
            if place and len(blocked) < NAMED:
                blocked.append(f"{process.comm}: {place}")
    return states, tuple(blocked)
