"""How something ended: a value, not an exception."""

from __future__ import annotations

from typing import Literal

import msgspec

from proofbox.model.evidence import Evidence
from proofbox.model.limits import FiredKind

Cause = Literal["task", "hung", "host", "unknown"]
"""Whose doing a limit was. ``unknown`` until evidence is classified; counters of the kernel prove ``task``."""

LostReason = Literal[
    "channel", "protocol", "guest", "memory", "wall", "cpu_time", "idle", "host", "create", "cancelled"
]


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The program ended by itself with this exit code, 0 to 255."""

    code: int


class Signaled(msgspec.Struct, frozen=True, tag="signaled"):
    """The program was ended by this signal, which was not ours."""

    signal: int


class HitLimit(msgspec.Struct, frozen=True, tag="limit", kw_only=True):
    """A limit fired. ``limit`` and ``used`` are in the limit's unit; ``used`` is what was measured, None if unknown."""

    kind: FiredKind
    limit: float
    used: float | None
    elapsed: float
    cause: Cause = "unknown"
    confirmed: bool = True
    """Every process of the command was seen to be gone. Where it is False the sandbox was ended for it."""
    at: float | None = None
    """When it fired, unix seconds; it began ``elapsed`` before that."""
    command: int | None = None
    """The id of the command in its sandbox."""
    evidence: Evidence | None = None
    """What ``cause`` was drawn from, for limits on time."""


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The caller asked for the end of it. ``confirmed`` as in ``HitLimit``."""

    confirmed: bool = True


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The sandbox went away under it: an infrastructure failure, never a result."""

    reason: LostReason
    detail: str = ""


Outcome = Exited | Signaled | HitLimit | Killed | Lost


def memory_hit(limit: int | None, peak: float | None, elapsed: float) -> HitLimit:
    """The kernel ended something at that limit on memory, which is always the task's own doing.

    A peak well above it counts more than what is limited (of a machine QEMU's own too), and is not told.
    """
    if limit and peak and peak > limit + limit / 64:
        peak = None
    return HitLimit(kind="memory", limit=float(limit or 0), used=peak, elapsed=elapsed, cause="task")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What was used, read from outside. None where this host or runtime has no counter for it. Seconds and bytes."""

    cpu_user: float | None = None
    cpu_system: float | None = None
    memory_peak: int | None = None
    memory_now: int | None = None
    oom_kills: int | None = None
    processes_now: int | None = None
    process_denials: int | None = None
    """How often a fork was refused by the limit on processes."""
    throttled: float | None = None
    cpu_waits: float | None = None
    """Seconds in which some process waited for a processor, or for its own quota (PSI of the group, version 2 only)."""
    disk: int | None = None
    full: Literal["disk", "inodes"] | None = None
    """Which limit of the writable layer leaves nothing at this moment; None if neither, or if that is not known."""
    processors: tuple[int, ...] = ()
    """Those of the host that it keeps to, by its limit ``cpus``; empty where it may use them all."""
