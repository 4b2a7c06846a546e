"""From an attempt to the event that records it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import msgspec

from proofbox.model.trace import (
    INLINE,
    AttemptEnded,
    CommandRecord,
    IsolationFound,
    Payload,
    SandboxSeen,
    TrialEnded,
    TurnEnded,
    recordable,
)
from proofbox.model.turn import Ran, Turn
from proofbox.trial.queue import Due
from proofbox.trial.trial import Attempt

COMMAND: Final = 1 << 20
"""Characters of a command, or of a note, that are kept."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The event, and the bytes that it names but does not hold."""

    event: AttemptEnded
    blobs: tuple[bytes, ...]
    found: tuple[IsolationFound, ...] = ()
    """What it names besides: how its sandboxes were kept apart."""

    def trial_ended(self) -> TrialEnded:
        """The event that makes this attempt the trial's ending."""
        end = self.event
        reward = None if end.verdict is None else end.verdict.reward
        return TrialEnded(trial=end.trial, attempt=end.attempt, at=end.at, ending=end.ending, reward=reward)


def record_turn(due: Due, turn: Turn) -> tuple[TurnEnded, tuple[bytes, ...]]:
    """The event of one turn, and the bytes that it names but does not hold."""
    event = TurnEnded(
        trial=due.trial,
        attempt=due.number,
        at=time.time(),
        turn=turn.number,
        note=recordable(turn.decision.note, COMMAND),
        timeout=turn.decision.timeout,
        commands=tuple(map(_command, turn.ran)),
        elapsed=turn.elapsed,
        limit=turn.limit,
        cut=turn.cut,
    )
    outputs = [data for ran in turn.ran for data in (ran.stdout, ran.stderr)]
    return event, tuple(data for data in outputs if len(data) > INLINE)


def _command(ran: Ran) -> CommandRecord:
    return CommandRecord(
        command=recordable(ran.command, COMMAND),
        outcome=ran.outcome,
        error=ran.error,
        stdout=Payload.of(ran.stdout),
        stderr=Payload.of(ran.stderr),
        stdout_total=ran.stdout_total,
        stderr_total=ran.stderr_total,
        elapsed=ran.elapsed,
        cpu=ran.cpu,
        oom_kills=ran.oom_kills,
        process_denials=ran.process_denials,
    )


def record(due: Due, done: Attempt, queued: float) -> Recorded:
    """``queued``: seconds that it waited for a slot."""
    verdict, failure = done.verdict, done.failure
    candidate = None if done.candidate is None else done.candidate.completion.encode("utf-8", "surrogatepass")
    log = None if verdict is None or not verdict.log else verdict.log
    digests = {isolation.alike(): isolation.digest() for _, isolation in done.sandboxes.values()}
    event = AttemptEnded(
        trial=due.trial,
        attempt=due.number,
        at=time.time(),
        ending=verdict.ending if verdict else "infrastructure" if failure else "not_run",
        reason=verdict.reason if verdict else failure.message if failure else "the agent handed in nothing",
        verdict=None if verdict is None else msgspec.structs.replace(verdict, log=b"", timings={}),
        failure=failure,
        candidate=None if candidate is None else Payload.of(candidate),
        log=None if log is None else Payload.of(log),
        sandboxes=tuple(
            SandboxSeen(id=box, phase=phase, isolation=digests[isolation.alike()], ids=isolation.ids)
            for box, (phase, isolation) in done.sandboxes.items()
        ),
        timings={"queue": queued, **done.timings, **(verdict.timings if verdict else {})},
    )
    found = tuple(IsolationFound(at=event.at, digest=digest, isolation=alike) for alike, digest in digests.items())
    return Recorded(event, tuple(data for data in (candidate, log) if data is not None and len(data) > INLINE), found)
