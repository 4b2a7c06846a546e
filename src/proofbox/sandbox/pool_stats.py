"""What a pool did so far, and how long its claims took."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

WINDOW: Final = 1024
"""Claims, the latest, of which the times are kept."""

State = Literal["filling", "ready", "stuck", "closed"]
"""
filling  fewer members stand than are wanted, and more are on their way
ready    as many stand as are wanted
stuck    creation does not get on: it failed again and again, or has taken far too long; ``error`` tells
closed   no more claims are served
"""

Gone = Literal["unhealthy", "unclean", "expired", "drained", "surplus"]
"""
unhealthy  it died while it waited, or did not answer when it was to be handed out
unclean    it was not what others of its kind are, when it was made or when it was to be handed out
expired    nobody claimed it in time
drained    the template's name means another digest now
surplus    fewer are needed than stood
"""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from asking until the sandbox was there, of the latest claims (nearest rank); 0 where there are none."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one moment. Counts are since it was opened.

    ready, pending, claimed  members that stand; that are being made; sandboxes in the hands of claimants
    wanted                   members that should stand now, between ``least`` and ``most``
    hits, misses             claims that got a member; that found none (and got a cold sandbox, or ``Busy``)
    other                    claims for something else than the pool holds: always cold, not in the hit rate
    made, failed             members that came up; creations that did not
    unhealthy, unclean, expired, drained, surplus   members that went without having been handed out, and why; those
                             that were unclean from the first are among the failed, too
    error                    the latest failure, "" if there was none or all is well again
    """

    state: State
    error: str
    ready: int
    pending: int
    claimed: int
    wanted: int
    least: int
    most: int
    hits: int
    misses: int
    other: int
    made: int
    failed: int
    unhealthy: int
    unclean: int
    expired: int
    drained: int
    surplus: int
    warm: Latency
    cold: Latency

    @property
    def hit_rate(self) -> float | None:
        """The share of claims for what the pool holds that got a member; None before the first."""
        claims = self.hits + self.misses
        return self.hits / claims if claims else None


class Tally:
    """Counts as things happen."""

    __slots__ = ("claimed", "cold", "failed", "gone", "hits", "made", "misses", "other", "warm")

    def __init__(self) -> None:
        self.claimed = self.hits = self.misses = self.other = self.made = self.failed = 0
        self.gone: Counter[Gone] = Counter()
        self.warm: deque[float] = deque(maxlen=WINDOW)
        self.cold: deque[float] = deque(maxlen=WINDOW)


def latency(seconds: Sequence[float]) -> Latency:
    """The percentiles of these."""
    if not seconds:
        return Latency()
    ranked = sorted(seconds)
    return Latency(*(ranked[ceil(share * len(ranked)) - 1] for share in (0.50, 0.95, 0.99)))
