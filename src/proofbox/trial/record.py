"""From an attempt to the event that records it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from proofbox.model.trace import INLINE, AttemptEnded, Payload, TrialEnded
from proofbox.trial.trial import Attempt
from proofbox.trial.turns import Turn


@dataclass(frozen=True, slots=True)
class Recorded:
    """The event, and the bytes that it names but does not hold."""

    event: AttemptEnded
    blobs: tuple[bytes, ...]

    def trial_ended(self) -> TrialEnded:
        """The event that makes this attempt the trial's ending."""
        end = self.event
        reward = None if end.verdict is None else end.verdict.reward
        return TrialEnded(trial=end.trial, attempt=end.attempt, at=end.at, ending=end.ending, reward=reward)


def record(turn: Turn, done: Attempt, queued: float) -> Recorded:
    """``queued``: seconds that the turn waited for a slot."""
    verdict, failure = done.verdict, done.failure
    candidate = None if done.candidate is None else done.candidate.completion.encode("utf-8", "surrogatepass")
    log = None if verdict is None or not verdict.log else verdict.log
    event = AttemptEnded(
        trial=turn.trial,
        attempt=turn.number,
        at=time.time(),
        ending=verdict.ending if verdict else "infrastructure" if failure else "not_run",
        reason=verdict.reason if verdict else failure.message if failure else "the agent handed in nothing",
        verdict=None if verdict is None else msgspec.structs.replace(verdict, log=b"", timings={}),
        failure=failure,
        candidate=None if candidate is None else Payload.of(candidate),
        log=None if log is None else Payload.of(log),
        timings={"queue": queued, **done.timings, **(verdict.timings if verdict else {})},
    )
    return Recorded(event, tuple(data for data in (candidate, log) if data is not None and len(data) > INLINE))
