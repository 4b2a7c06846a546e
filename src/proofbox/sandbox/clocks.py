"""Limits of a whole sandbox that nothing below sees to: the CPU time of all its processes, and how long it lies idle.

Both are read from outside, by a task that sleeps until the earliest moment at which the limit could be reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter, time
from typing import TYPE_CHECKING, Final

import anyio

from proofbox.errors import SandboxLost
from proofbox.kit.loop import Background, Stop
from proofbox.model.limits import LimitKind
from proofbox.model.outcome import Cause, HitLimit

if TYPE_CHECKING:
    from proofbox.sandbox.lifecycle import Life

LEAST: Final = 0.02
"""Seconds between looks at least: what a sandbox can use beyond its CPU time, on each processor."""
LOOKS: Final = 10
"""Looks within one limit on idleness: it is ended at most a tenth of the limit too late, and never too early."""


def start_clocks(life: Life) -> Stop:
    """Watches a live sandbox for those limits that it has. Call what is returned at its end; idempotent."""
    limits = life.spec.limits
    tasks = []
    if limits.cpu_time is not None:
        tasks.append(Background(lambda: _cpu_time(life, limits.cpu_time or 0.0), f"proofbox CPU {life.spec.id}"))
    if limits.idle is not None:
        tasks.append(Background(lambda: _idle(life, limits.idle or 0.0), f"proofbox idle {life.spec.id}"))

    def stop() -> None:
        for task in tasks:
            task.cancel()

    return stop


async def _cpu_time(life: Life, limit: float) -> None:
    processors = float(len(os.sched_getaffinity(0)))
    share = min(life.spec.limits.cpus or processors, processors)
    while True:
        try:
            usage = await life.usage()
        except SandboxLost:
            return
        except OSError as error:
            _lose(life, f"its CPU time cannot be read any more: {error}", "host", None)
            return
        if usage.cpu_user is None or usage.cpu_system is None:
            _lose(life, "its CPU time, on which it has a limit, is not counted any more", "host", None)
            return
        used = usage.cpu_user + usage.cpu_system
        if used >= limit:
            hit = _hit(life, "cpu_time", limit, used)
            _lose(life, f"used {used:.3g} s of CPU time, over its limit cpu_time of {limit:g} s", "cpu_time", hit)
            return
        await anyio.sleep(max(LEAST, (limit - used) / share))


async def _idle(life: Life, limit: float, now: Callable[[], float] = perf_counter) -> None:
    channel, seen, since = life.channel, -1, now()
    while life.state == "live":
        if channel.busy or channel.operations != seen:
            seen, since = channel.operations, now()
        elif (idle := now() - since) >= limit:
            hit = _hit(life, "idle", limit, idle)
            _lose(life, f"was asked for nothing for {idle:.3g} s, over its limit idle of {limit:g} s", "idle", hit)
            return
        await anyio.sleep(max(LEAST / 2, limit / LOOKS))


def _hit(life: Life, kind: LimitKind, limit: float, used: float) -> HitLimit:
    """The kernel counted CPU time, so that is the task's; whoever left it idle was not in the sandbox."""
    cause: Cause = "task" if kind == "cpu_time" else "unknown"
    return HitLimit(kind=kind, limit=limit, used=used, elapsed=life.age(), cause=cause, at=time())


def _lose(life: Life, what: str, reason: str, hit: HitLimit | None) -> None:
    life.lose(SandboxLost(f"sandbox {life.spec.id} {what}, and was ended", reason, hit))
