"""The clocks of one attempt: each phase has its own, and one runs over all of them.

What is outside of the phases counts on none: waiting for a slot, pauses between attempts, recording. Nor does the
making of sandboxes (``kit.clock.paused``), whoever asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from proofbox.errors import VerifierFailed
from proofbox.kit.clock import Clock
from proofbox.model.limits import PhaseKind, Walls
from proofbox.model.outcome import HitLimit
from proofbox.model.trace import Phase
from proofbox.model.verdict import Verdict

KINDS: Final[dict[Phase, PhaseKind]] = {"agent": "agent_wall", "verify": "verify_wall"}


class OutOfTime(Exception):
    """The agent did not hand in anything in time. ``verdict`` has the limit."""

    def __init__(self, limit: HitLimit) -> None:
        reason = f"limit {limit.kind} of {limit.limit:g} s reached after {limit.elapsed:.2f} s: nothing was handed in"
        super().__init__(reason)
        self.verdict = Verdict(ending="limit", reason=reason, limit=limit)


class Clocks:
    """For one attempt."""

    def __init__(self, walls: Walls) -> None:
        self._walls = walls
        self._used = 0.0

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Cancels what is inside when its time, or what the whole attempt has left, is over.

        Raises ``OutOfTime`` then, or ``VerifierFailed`` in phase ``verify``: a verifier that is late says nothing about
        the candidate.
        """
        own = getattr(self._walls, KINDS[phase])
        own = inf if own is None else own
        whole = inf if self._walls.trial_wall is None else self._walls.trial_wall
        clock = Clock(min(own, max(0.0, whole - self._used)))
        try:
            with clock.run():
                yield
        finally:
            self._used += clock.used
        if not clock.expired:
            return
        its_own = own <= whole - (self._used - clock.used)
        used = clock.used if its_own else self._used
        limit = HitLimit(
            kind=KINDS[phase] if its_own else "trial_wall",
            limit=own if its_own else whole,
            used=used,
            elapsed=clock.used,
            at=time.time(),
        )
        if phase == "agent":
            raise OutOfTime(limit)
        said = f"the verifier was not done when the limit {limit.kind} of {limit.limit:g} s was reached"
        raise VerifierFailed(f"{said} (after {used:.2f} s)", limit)
