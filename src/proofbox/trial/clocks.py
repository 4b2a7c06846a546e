"""The clocks of one attempt: each phase has its own, and one runs over all of them.

What is outside of the phases counts on none: waiting for a slot, pauses between attempts, recording. Nor does the
making of sandboxes and their end (``kit.clock.paused``), whoever asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from proofbox.errors import SetupFailed, VerifierFailed
from proofbox.kit.clock import Clock
from proofbox.model.limits import PhaseKind, Walls
from proofbox.model.outcome import HitLimit
from proofbox.model.trace import Phase
from proofbox.model.verdict import Verdict

KINDS: Final[dict[Phase, PhaseKind]] = {"setup": "setup_wall", "agent": "agent_wall", "verify": "verify_wall"}


class Decided(Exception):
    """The verdict is there without a verifier: the agent has left nothing that could be judged."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def out_of_time(limit: HitLimit) -> Decided:
    """The agent was late; nothing says whose doing that was."""
    reason = f"limit {limit.kind} of {limit.limit:g} s reached after {limit.elapsed:.2f} s: nothing was handed in"
    return Decided(Verdict(ending="limit", reason=reason, limit=limit))


class Clocks:
    """For one attempt. ``timings`` gets the seconds of each phase as they passed on the wall."""

    def __init__(self, walls: Walls, timings: dict[str, float]) -> None:
        self.timings = timings
        self.at: Phase = "agent"
        """The phase that is on, or was the last one."""
        self._walls = walls
        self._used = 0.0

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Cancels what is inside when its time, or what the whole attempt has left, is over.

        Raises then: ``Decided`` with the limit in phase ``agent``; in the others ``SetupFailed`` or ``VerifierFailed``,
        which say nothing about the agent.
        """
        self.at = phase
        own = getattr(self._walls, KINDS[phase])
        own = inf if own is None else own
        whole = inf if self._walls.trial_wall is None else self._walls.trial_wall
        clock = Clock(min(own, max(0.0, whole - self._used)))
        began = time.monotonic()
        try:
            with clock.run():
                yield
        finally:
            self.timings[phase] = time.monotonic() - began
            self._used += clock.used
        if clock.expired:
            raise self._late(phase, clock, own, whole)

    def _late(self, phase: Phase, clock: Clock, own: float, whole: float) -> Exception:
        its_own = own <= whole - (self._used - clock.used)
        used = clock.used if its_own else self._used
        limit = HitLimit(
            kind=KINDS[phase] if its_own else "trial_wall",
            limit=own if its_own else whole,
            used=used,
            elapsed=clock.used,
            at=time.time(),
        )
        said = f"was not done when the limit {limit.kind} of {limit.limit:g} s was reached (after {used:.2f} s)"
        match phase:
            case "agent":
                return out_of_time(limit)
            case "setup":
                return SetupFailed(f"the task's setup {said}", limit)
            case "verify":
                return VerifierFailed(f"the verifier {said}", limit)
