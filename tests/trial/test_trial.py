"""One attempt: who is to blame, and that nothing but a verdict becomes a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from proofbox.errors import CreateFailed, InvalidInput, ProtocolViolation, Refused, SandboxLost, VerifierFailed
from proofbox.model.ids import TrialId
from proofbox.model.outcome import HitLimit, Usage
from proofbox.model.task import Candidate, Task
from proofbox.model.trace import INLINE
from proofbox.model.verdict import Verdict
from proofbox.trial.queue import Due
from proofbox.trial.record import record
from proofbox.trial.trial import Attempt, attempt

CANDIDATE = Candidate(completion="    return 1\n")
PASSED = Verdict(ending="passed")


@dataclass
class Says:
    """Agent and verifier that return, or raise, what they are given."""

    candidate: Any = CANDIDATE
    verdict: Any = PASSED
    name: str = "says"

    async def act(self, task: Task, index: int) -> Candidate | None:
        said: Candidate | None = self._say(self.candidate)
        return said

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        said: Verdict = self._say(self.verdict)
        return said

    def _say(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value


@pytest.fixture
def task(tasks: Callable[..., list[Task]]) -> Task:
    return tasks("passed")[0]


async def test_a_verdict_goes_through_with_the_candidate_and_the_time_of_each_phase(task: Task) -> None:
    """Agent, then verifier; both are timed; there is no failure."""
    done = await attempt(task, 0, Says(), Says())
    assert (done.candidate, done.verdict, done.failure) == (CANDIDATE, PASSED, None)
    assert set(done.timings) == {"agent", "verify"}


async def test_an_agent_with_nothing_to_hand_in_is_not_judged(task: Task) -> None:
    """None from the agent is neither a verdict nor a failure: the trial is not run, the verifier is not asked."""
    done = await attempt(task, 0, Says(candidate=None), Says(verdict=AssertionError("was asked")))
    assert (done.candidate, done.verdict, done.failure) == (None, None, None)
    assert _event(done).ending == "not_run"


@pytest.mark.parametrize(
    ("error", "code", "blame", "reason"),
    [
        (SandboxLost("gone", "memory"), "sandbox_lost", "host", "memory"),
        (CreateFailed("no", "mount"), "create_failed", "host", "mount"),
        (ProtocolViolation("frame of 2 GB"), "protocol_violation", "task", "protocol"),
        (VerifierFailed("no tests"), "verifier_failed", "verifier", ""),
        (InvalidInput("no"), "invalid_input", "caller", ""),
        (Refused("a sandbox", ("no user namespaces",)), "refused", "host", ""),
        (
            ExceptionGroup("tasks", [ExceptionGroup("in tasks", [SandboxLost("gone")])]),
            "sandbox_lost",
            "host",
            "channel",
        ),
        (ExceptionGroup("tasks", [ValueError("result of it"), SandboxLost("gone")]), "sandbox_lost", "host", "channel"),
        (TimeoutError("70 s"), "verifier_failed", "verifier", ""),
        (ZeroDivisionError("\ud800"), "verifier_failed", "verifier", ""),
    ],
)
async def test_what_the_verifier_raises_is_a_typed_failure_and_no_reward(
    task: Task, error: Exception, code: str, blame: str, reason: str
) -> None:
    """Each error keeps its code, blame and reason; an unexpected one is blamed on the verifier. Never a number."""
    done = await attempt(task, 0, Says(), Says(verdict=error))
    assert done.failure is not None
    assert (done.failure.code, done.failure.blame, done.failure.reason) == (code, blame, reason)
    assert done.failure.phase == "verify"
    event = _event(done)
    assert event.ending == "infrastructure"
    assert event.verdict is None
    assert event.reason


async def test_what_the_agent_raises_unexpectedly_is_blamed_on_the_agent(task: Task) -> None:
    """The message names the phase and the exception; there is no candidate and no reward."""
    done = await attempt(task, 0, Says(candidate=KeyError("choices")), Says())
    assert done.failure is not None
    assert (done.failure.code, done.failure.blame, done.failure.phase) == ("agent_failed", "agent", "agent")
    assert "KeyError: 'choices'" in done.failure.message
    assert done.candidate is None


async def test_what_is_no_candidate_is_the_agents_failure(task: Task) -> None:
    """A plain text, for instance: the verifier is not asked, and not blamed."""
    done = await attempt(task, 0, Says(candidate="    return 1"), Says(verdict=AssertionError("was asked")))
    assert done.failure is not None
    assert (done.failure.code, done.failure.blame) == ("agent_failed", "agent")


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        1.0,
        Verdict(ending="limit"),
        Verdict(ending="passed", limit=HitLimit(kind="wall", limit=1.0, used=1.0, elapsed=1.0)),
        Verdict(ending="passed", timings={"calls": float("nan")}),
        Verdict(ending="failed", usage=Usage(cpu_user=float("inf")), limit=None, timings={"x": float("inf")}),
        Verdict(ending="won"),  # type: ignore[arg-type]
    ],
)
async def test_a_verdict_that_makes_no_sense_is_the_verifiers_failure(task: Task, verdict: Any) -> None:
    """What is not a verdict, contradicts itself or cannot be recorded gives no reward, whatever it claims."""
    done = await attempt(task, 0, Says(), Says(verdict=verdict))
    assert done.verdict is None
    assert done.failure is not None
    assert done.failure.code == "verifier_failed"


async def test_a_limit_that_was_the_hosts_doing_is_infrastructure(task: Task) -> None:
    """A timeout because the host did not let the program run says nothing about the program."""
    limit = HitLimit(kind="wall", limit=3.0, used=None, elapsed=3.0, cause="host")
    done = await attempt(task, 0, Says(), Says(verdict=Verdict(ending="limit", limit=limit)))
    assert done.verdict is None
    assert done.failure is not None
    assert (done.failure.code, done.failure.blame) == ("sandbox_lost", "host")


async def test_cancellation_is_not_a_failure(task: Task) -> None:
    """A cancelled attempt has no end at all: the cancellation goes through."""

    class Waits(Says):
        async def judge(self, task: Task, candidate: Candidate) -> Verdict:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

    ended = False
    with anyio.CancelScope() as scope:
        await attempt(task, 0, Says(), Waits())
        ended = True
    assert not ended


def test_large_outputs_are_named_by_digest_and_small_ones_stand_in_the_event() -> None:
    """A payload above the inline size goes to a blob; text that is not UTF-8 does not hinder it."""
    large = Attempt(
        candidate=Candidate(completion="x" * (INLINE + 1) + "\ud800"), verdict=Verdict(ending="failed", log=b"\xff")
    )
    recorded = record(Due(TrialId("T", 0), 1, 1, 0.0), large, queued=0.0)
    event = recorded.event
    assert event.candidate is not None
    assert event.candidate.inline is None
    assert [len(blob) for blob in recorded.blobs] == [event.candidate.size]
    assert event.log is not None
    assert event.log.inline == b"\xff"
    assert event.verdict is not None
    assert event.verdict.log == b""


def _event(done: Attempt) -> Any:
    return record(Due(TrialId("T", 0), 1, 1, 0.0), done, queued=0.0).event
