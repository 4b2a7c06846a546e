"""What the cause of a limit means for a trial: an ending with a reward, one without, or a new attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from proofbox.model.evidence import Evidence, Pressure
from proofbox.model.outcome import Cause, HitLimit
from proofbox.model.run import HostFacts, RunConfig
from proofbox.model.task import Candidate, Task
from proofbox.model.verdict import Verdict
from proofbox.store.render import render
from proofbox.store.report import Report
from proofbox.store.runs import Store
from proofbox.trial.run import run_tasks

SEEN = Evidence(elapsed=3.0, seen=2.9, looks=50, cpu=0.2, wanted=2.9, wanting=2.9, host=Pressure(cpus=2, others=5.6))


def limit(cause: Cause) -> HitLimit:
    return HitLimit(kind="command_wall", limit=3.0, used=3.0, elapsed=3.0, cause=cause, at=1.0, evidence=SEEN)


@dataclass
class Slow:
    """Agent and verifier whose verdicts are limits, for these causes in this order, then passes."""

    causes: list[Cause]
    name: str = "slow"
    judged: int = field(default=0)

    async def act(self, task: Task, index: int) -> Candidate | None:
        return Candidate(completion="    pass\n")

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        self.judged += 1
        if self.judged > len(self.causes):
            return Verdict(ending="passed")
        return Verdict(ending="limit", limit=limit(self.causes[self.judged - 1]))


async def run(root: Path, task: Task, *causes: Cause, attempts: int = 1) -> tuple[Report, Slow]:
    slow = Slow(list(causes))
    config = RunConfig(tasks="t", agent="slow", jobs=1, attempts=attempts)
    facts = HostFacts(runtime="fake", level="container", templates={"host": "sha256:0"})
    return await run_tasks(config, [task], slow, slow, facts, Store(root)), slow


@pytest.fixture
def task(tasks: Callable[..., list[Task]]) -> Task:
    return tasks("any")[0]


async def test_the_hosts_limit_is_tried_again_and_never_a_number(tmp_path: Path, task: Task) -> None:
    """The attempt is infrastructure and keeps the limit with its evidence; the next one is judged."""
    report, slow = await run(tmp_path, task, "host", attempts=2)
    trial = report.trials[0]
    assert (slow.judged, trial.ending, trial.reward, trial.first) == (2, "passed", 1.0, "infrastructure")
    assert [(line.kind, line.cause, line.attempts, line.trials) for line in report.limits] == [
        ("command_wall", "host", 1, 0)
    ]


async def test_the_hosts_limit_at_the_last_attempt_has_no_reward(tmp_path: Path, task: Task) -> None:
    """It ends as infrastructure, says why, and the evidence stands beside it."""
    report, _ = await run(tmp_path, task, "host")
    trial = report.trials[0]
    assert (trial.ending, trial.reward) == ("infrastructure", None)
    assert trial.failure is not None
    assert (trial.failure.reason, trial.failure.limit) == ("host", limit("host"))
    assert "host did not let" in trial.reason


@pytest.mark.parametrize(
    ("cause", "hung_counts", "reward"),
    [
        ("task", False, 0.0),
        ("hung", False, None),
        ("hung", True, 0.0),
        ("unknown", False, None),
        ("unknown", True, None),
    ],
)
async def test_what_counts_and_what_teaches(
    tmp_path: Path, task: Task, cause: Cause, hung_counts: bool, reward: float | None
) -> None:
    """All are the ending ``limit``, in every denominator; a reward has only what is surely the policy's own doing."""
    report, slow = await run(tmp_path, msgspec.structs.replace(task, hung_counts=hung_counts), cause, attempts=3)
    trial = report.trials[0]
    assert (slow.judged, trial.ending, trial.reward, report.judged) == (1, "limit", reward, 1)
    line = report.limits[0]
    assert (line.cause, line.trials, line.masked) == (cause, 1, 1 if reward is None else 0)
    assert trial.limit is not None
    assert trial.limit.evidence == SEEN
    assert cause in render(report)
