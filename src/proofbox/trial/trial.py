"""One attempt of a trial: the agent acts; what it leaves behind is the candidate; the verifier judges it, elsewhere.

Nothing of an attempt outlives it, however it ends: the agent and the verifier hold their sandboxes in their own
``async with``. Where it fails, ``_attribute`` is the one place that says whose doing it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from proofbox.agent.contract import Agent
from proofbox.errors import AgentFailed, ProofboxError, SandboxLost, VerifierFailed
from proofbox.model.outcome import HitLimit
from proofbox.model.task import Candidate, Task
from proofbox.model.trace import Failure, Phase, recordable
from proofbox.model.verdict import Verdict
from proofbox.trial.checks import handed_in, own_limit, trusted
from proofbox.trial.clocks import Clocks, OutOfTime


class Verifier(Protocol):
    """Judges candidates. Called concurrently."""

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        """Judges in sandboxes of its own. Raises ``SandboxLost`` or ``VerifierFailed`` where it cannot say."""
        ...


@dataclass(slots=True)
class Attempt:
    """How an attempt ended: a verdict; or a failure and so no reward; or neither, where the agent handed in nothing."""

    candidate: Candidate | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    timings: dict[str, float] = field(default_factory=dict)


async def attempt(task: Task, index: int, agent: Agent, verifier: Verifier) -> Attempt:
    """Agent acts -> candidate -> verifier judges -> verdict. Raises nothing but cancellation; safe to repeat."""
    done = Attempt()
    phase: Phase = "agent"
    clocks = Clocks(task.walls)
    try:
        with _timed(done.timings, phase), clocks.phase(phase):
            done.candidate = handed_in(await agent.act(task, index))
        if done.candidate is not None:
            phase = "verify"
            with _timed(done.timings, phase), clocks.phase(phase):
                done.verdict = trusted(await verifier.judge(task, done.candidate), task)
    except OutOfTime as late:
        done.verdict = trusted(late.verdict, task)
    except Exception as error:  # noqa: BLE001 - not swallowed but recorded: a broken attempt is a value of its own
        own = own_limit(root_of(error), phase)
        if own is not None:
            done.verdict = trusted(own, task)
        else:
            done.failure = _attribute(error, phase)
    return done


@contextmanager
def _timed(timings: dict[str, float], phase: Phase) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        timings[phase] = time.monotonic() - began


def root_of(error: Exception) -> Exception:
    """What stands behind an exception group, whose own words say nothing: its first error of ours, else its first."""
    if not isinstance(error, ExceptionGroup):
        return error
    roots = [root_of(part) for part in error.exceptions]
    return next((root for root in roots if isinstance(root, ProofboxError)), roots[0])


def _attribute(error: Exception, phase: Phase) -> Failure:
    """Whose doing it was: what a ``ProofboxError`` says itself, else the side that was at work when it was raised."""
    error = root_of(error)
    limit = error.limit if isinstance(error, SandboxLost | VerifierFailed) else None
    if not isinstance(error, ProofboxError):
        side = AgentFailed if phase == "agent" else VerifierFailed
        error = side(f"the {phase} phase broke: {type(error).__name__}: {error}")
    return Failure(
        code=error.code,
        blame=error.blame,
        again=error.again,
        phase=phase,
        reason=getattr(error, "reason", ""),
        message=recordable(str(error)),
        limit=limit if isinstance(limit, HitLimit) else None,
    )
