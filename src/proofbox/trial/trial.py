"""One attempt of a trial: the agent acts; what it leaves behind is the candidate; the verifier judges it, elsewhere.

Nothing of an attempt outlives it, however it ends: the agent and the verifier hold their sandboxes in their own
``async with``. Where it fails, ``_attribute`` is the one place that says whose doing it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from proofbox.agent.contract import Agent, TurnAgent
from proofbox.errors import AgentFailed, InvalidInput, ProofboxError, SetupFailed, VerifierFailed
from proofbox.model.isolation import Isolation
from proofbox.model.outcome import HitLimit
from proofbox.model.task import Candidate, Task
from proofbox.model.trace import Failure, Phase, recordable
from proofbox.model.turn import Turn
from proofbox.model.verdict import Verdict
from proofbox.sandbox.isolation import watched
from proofbox.trial.checks import handed_in, own_limit, trusted
from proofbox.trial.clocks import Clocks, Decided
from proofbox.trial.rollout import Tell, Workplace, act_in_sandbox

SIDES: Final[dict[Phase, type[ProofboxError]]] = {
    "setup": SetupFailed,
    "agent": AgentFailed,
    "verify": VerifierFailed,
}
"""Who broke, where an error that is none of ours is raised in a phase."""


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
    sandboxes: dict[str, tuple[Phase, Isolation]] = field(default_factory=dict)
    """By their ids, each with where it was first used, and how it was kept apart then."""


async def unheard(turn: Turn) -> None:
    """Records nothing."""


async def attempt(
    task: Task,
    index: int,
    agent: Agent | TurnAgent,
    verifier: Verifier,
    place: Workplace | None = None,
    tell: Tell = unheard,
) -> Attempt:
    """Agent acts -> candidate -> verifier judges -> verdict. Raises nothing but cancellation; safe to repeat."""
    done = Attempt()
    clocks = Clocks(task.walls, done.timings)
    try:
        with watched(lambda box, isolation: done.sandboxes.setdefault(box, (clocks.at, isolation))):
            done.candidate = await _candidate(task, index, agent, place, clocks, tell)
            if done.candidate is not None:
                with clocks.phase("verify"):
                    done.verdict = trusted(await verifier.judge(task, done.candidate), task)
    except Decided as decided:
        done.verdict = trusted(decided.verdict, task)
    except Exception as error:  # noqa: BLE001 - not swallowed but recorded: a broken attempt is a value of its own
        own = own_limit(root_of(error), clocks.at)
        if own is not None:
            done.verdict = trusted(own, task)
        else:
            done.failure = _attribute(error, clocks.at)
    return done


async def _candidate(
    task: Task, index: int, agent: Agent | TurnAgent, place: Workplace | None, clocks: Clocks, tell: Tell
) -> Candidate | None:
    if not isinstance(agent, TurnAgent):
        with clocks.phase("agent"):
            return handed_in(await agent.act(task, index))
    if place is None:
        raise InvalidInput(f"agent {agent.name} acts in sandboxes, and nobody said where")
    return await act_in_sandbox(task, index, agent, place, clocks, tell)


def root_of(error: Exception) -> Exception:
    """What stands behind an exception group, whose own words say nothing: its first error of ours, else its first."""
    if not isinstance(error, ExceptionGroup):
        return error
    roots = [root_of(part) for part in error.exceptions]
    return next((root for root in roots if isinstance(root, ProofboxError)), roots[0])


def _attribute(error: Exception, phase: Phase) -> Failure:
    """Whose doing it was: what a ``ProofboxError`` says itself, else the side that was at work when it was raised."""
    error = root_of(error)
    if not isinstance(error, ProofboxError):
        side = SIDES[phase]
        error = side(f"the {phase} phase broke: {type(error).__name__}: {error}")
    limit = getattr(error, "limit", None)
    return Failure(
        code=error.code,
        blame=error.blame,
        again=error.again,
        phase=phase,
        reason=getattr(error, "reason", ""),
        message=recordable(str(error)),
        limit=limit if isinstance(limit, HitLimit) else None,
    )
