"""Whose doing a time limit was: evidence in, cause out, and what a cause means. Pure; docs/limits.md explains.

The two mistakes do not cost the same. A ``host`` that is called ``task`` turns the host's bad minute into a reward of 0
and teaches the policy something false; a ``task`` that is called ``host`` costs one more attempt. So every threshold
leans towards ``host``, and what cannot be told is ``unknown``, which teaches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from proofbox.model.evidence import Evidence
from proofbox.model.outcome import Cause, HitLimit

HOST_SHARE: Final = 0.2
"""Of the time allowed, that the host took: from here on it would have been another run on an idle host."""
TASK_SHARE: Final = 0.5
"""Of the time that it had, in which it ran: from here on it was computing."""
SOME_SHARE: Final = 0.2
"""As ``TASK_SHARE`` for a program that still ran at the end: it got on, with pauses."""
STILL_SHARE: Final = 0.5
"""Of the time that it had, at the end, in which nothing of it moved: who computed first and then blocked is blocked."""
STUCK_SHARE: Final = 0.15
"""Of the time, in uninterruptible sleep on nobody knows what, and more than it ran, from which on all is unknown."""
IO_EXPLAINS: Final = 0.3
"""Of such sleep, in which the host had tasks waiting for disks or memory: then it was that."""
FAST_DISK: Final = 64 << 20
"""Bytes moved in a second of waiting for a disk, from which on the disk served it well and the wait is its own."""
WAITS_SLACK: Final = 1.5
"""The kernel averages a group's waiting over processors: who waited on one is thinned by who ran on another."""
SEEN_SHARE: Final = 0.4
LEAST_LOOKS: Final = 2
TASK_LOOKS: Final = 3
"""Fewer looks than this are not enough to say that it was computing: that is the cause which teaches."""
LEAST_SECONDS: Final = 0.04
"""Less than this of the time seen, or fewer looks, or a shorter interval, is no evidence."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The evidence as shares of the time that was seen, 0 to 1."""

    ran: float
    """It ran, or moved data as fast as a disk can: the time in which it wanted to, less what it lost."""
    lost: float
    """It wanted to run, within its own share, and others had the processor."""
    disk: float
    """It waited for a disk that did not serve it well."""
    unexplained: float
    """It slept uninterruptibly, and nothing says on what."""
    still: float
    late: float
    """Our own process came late to it, where it waited for our answers."""

    @property
    def taken(self) -> float:
        """By the host, of its time."""
        return min(1.0, max(self.lost + self.disk, self.late))


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a cause means. ``counts``: the trial is judged, and the limit is its ending. ``trains``: it has a reward."""

    counts: bool
    trains: Literal["yes", "where the task says so", "no"]


MEANING: Final[dict[Cause, Meaning]] = {
    "task": Meaning(counts=True, trains="yes"),
    "hung": Meaning(counts=True, trains="where the task says so"),
    "unknown": Meaning(counts=True, trains="no"),
    "host": Meaning(counts=False, trains="no"),
}
"""The one table of docs/limits.md. What does not count is an infrastructure failure: no reward, a new attempt."""


def masked(limit: HitLimit | None, *, hung_counts: bool) -> bool:
    """A trial that ended by this limit has no reward: it must not teach. ``hung_counts`` is the task's own word."""
    if limit is None:
        return False
    trains = MEANING[limit.cause].trains
    return trains == "no" or (trains == "where the task says so" and not hung_counts)


def cause_of(evidence: Evidence | None) -> Cause:
    """Whose doing it was that the time ran out."""
    if evidence is None:
        return "unknown"
    shares = shares_of(evidence)
    if shares is None:
        return "unknown"
    had = evidence.elapsed * (1 - shares.taken)
    if had < (1 - HOST_SHARE) * (evidence.allowed or evidence.elapsed):
        return "host"
    if shares.unexplained >= max(STUCK_SHARE, shares.ran):
        return "unknown"
    own = max(1 - shares.lost - shares.disk, HOST_SHARE)
    still, ran = shares.still / own, shares.ran / own
    if still >= STILL_SHARE:
        return "hung"
    if ran < (SOME_SHARE if still < SOME_SHARE else TASK_SHARE):
        return "hung"
    # Between two looks it may have computed first and blocked then; more of them tell the two apart.
    return "task" if evidence.looks >= TASK_LOOKS else "unknown"


def taken(evidence: Evidence) -> float:
    """Seconds of the time so far that the host took; 0 where that cannot be told."""
    shares = shares_of(evidence)
    return 0.0 if shares is None else evidence.elapsed * shares.taken


def shares_of(evidence: Evidence) -> Shares | None:
    """None where there is too little to judge by."""
    seen, host = evidence.seen, evidence.host
    if evidence.looks < LEAST_LOOKS or seen < LEAST_SECONDS or seen < SEEN_SHARE * evidence.elapsed:
        return None
    if evidence.cpu is None or evidence.wanted is None or host is None or host.others is None:
        return None
    wanting = min(1.0, evidence.wanting / seen)
    lost = 0.0
    if evidence.wanted > 0:
        # Nobody can lose more to others than these had: threads that only compete with each other lose nothing.
        others = host.others + (host.throttled or 0.0)
        lost = wanting * min(max(0.0, evidence.wanted - evidence.cpu), others) / evidence.wanted
        if evidence.waits is not None:
            lost = min(lost, WAITS_SLACK * evidence.waits / seen)
    disk, own, unexplained = _disk(evidence)
    ran = min(1.0, max(0.0, wanting - lost) + own)
    return Shares(
        ran=ran,
        lost=min(1.0, lost + ran * _stolen(evidence, host.steal or 0.0)),
        disk=disk,
        unexplained=unexplained,
        still=min(1.0, evidence.still / seen),
        late=min(1.0, evidence.lag / seen) if evidence.served else 0.0,
    )


def _stolen(evidence: Evidence, steal: float) -> float:
    """The part of its running that the hypervisor took away without the kernel's noticing."""
    assert evidence.host is not None
    running = (evidence.host.others or 0.0) + (evidence.cpu or 0.0)
    return steal / running if running > 0 else 0.0


def _disk(evidence: Evidence) -> tuple[float, float, float]:
    """Shares of waiting: for slow disks, for what it moved itself as fast as disks are, and for nobody knows what."""
    assert evidence.host is not None
    disk, stuck = (min(1.0, seconds / evidence.seen) for seconds in (evidence.disk_wait, evidence.stuck))
    if max(evidence.host.io or 0.0, evidence.host.memory or 0.0) >= IO_EXPLAINS * (disk + stuck):
        disk, stuck = disk + stuck, 0.0
    if evidence.moved is not None and evidence.moved >= FAST_DISK * evidence.disk_wait:
        return 0.0, disk, stuck
    return disk, 0.0, stuck
