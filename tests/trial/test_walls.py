"""Walls of an attempt: whose time counts on which clock, and what it means that one is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from proofbox.errors import BrokenTask, SandboxLost
from proofbox.kit.clock import Clock, paused
from proofbox.model.limits import Walls
from proofbox.model.outcome import HitLimit, Usage
from proofbox.model.run import HostFacts, RunConfig
from proofbox.model.task import Candidate, Task
from proofbox.model.verdict import Verdict
from proofbox.store.render import render
from proofbox.store.report import Report
from proofbox.store.runs import Store
from proofbox.trial.run import run_tasks
from proofbox.trial.trial import attempt

FOR_EVER = 3600.0
COUNTED = HitLimit(kind="cpu_time", limit=1.0, used=1.1, elapsed=2.0, cause="task")


@dataclass
class Takes:
    """Agent and verifier that take so many seconds; ``making`` of the agent's are spent on sandboxes."""

    agent: float = 0.0
    making: float = 0.0
    verify: float = 0.0
    usage: Usage | None = None
    name: str = "takes"
    judged: int = 0
    raises: Exception | None = None

    async def act(self, task: Task, index: int) -> Candidate | None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._make)
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(self.agent)
        if self.raises is not None:
            raise self.raises
        return Candidate(completion="    pass\n")

    async def _make(self) -> None:
        with paused():
            await anyio.sleep(self.making)

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        self.judged += 1
        await anyio.sleep(self.verify)
        return Verdict(ending="passed", usage=self.usage)


@pytest.fixture
def task(tasks: Callable[..., list[Task]]) -> Task:
    found = tasks("any")[0]
    return msgspec.structs.replace(found, judge=msgspec.structs.replace(found.judge, timeout=0.01))


def with_walls(task: Task, **walls: float) -> Task:
    return msgspec.structs.replace(task, walls=Walls(**walls))


async def run(root: Path, task: Task, takes: Takes, walls: Walls | None = None, attempts: int = 1) -> Report:
    config = RunConfig(tasks="t", agent="takes", attempts=attempts, walls=walls or Walls())
    facts = HostFacts(runtime="fake", level="container", templates={"host": "sha256:0"})
    return await run_tasks(config, [task], takes, takes, facts, Store(root))


async def test_an_agent_that_is_late_ends_its_trial_by_a_limit_that_teaches_nothing(tmp_path: Path, task: Task) -> None:
    """It is cancelled, nobody judges, and as nothing says whose doing it was there is no reward."""
    takes = Takes(agent=FOR_EVER)
    report = await run(tmp_path, task, takes, Walls(agent_wall=0.05))
    line = report.trials[0]
    assert (line.ending, line.reward, line.attempts, takes.judged) == ("limit", None, 1, 0)
    assert line.limit is not None
    assert (line.limit.kind, line.limit.limit, line.limit.cause) == ("agent_wall", 0.05, "unknown")
    assert line.limit.used is not None
    assert line.limit.used >= 0.05
    assert "agent_wall" in render(report)


async def test_a_verifier_that_is_late_is_infrastructure_and_tried_again(tmp_path: Path, task: Task) -> None:
    """It says nothing about the candidate; the limit stands with the failure, and there is no number."""
    takes = Takes(verify=FOR_EVER)
    report = await run(tmp_path, task, takes, Walls(verify_wall=0.05), attempts=2)
    line = report.trials[0]
    assert (line.ending, line.reward, line.attempts, takes.judged) == ("infrastructure", None, 2, 2)
    assert line.failure is not None
    assert (line.failure.code, line.failure.blame) == ("verifier_failed", "verifier")
    assert line.failure.limit is not None
    assert line.failure.limit.kind == "verify_wall"


@pytest.mark.parametrize(
    ("takes", "ending"), [(Takes(agent=0.1, verify=FOR_EVER), "failure"), (Takes(FOR_EVER), "verdict")]
)
async def test_the_trials_wall_goes_over_both(task: Task, takes: Takes, ending: str) -> None:
    """What the agent used is gone for the verifier; whose turn it was says what the end means."""
    done = await attempt(with_walls(task, agent_wall=FOR_EVER, trial_wall=0.2), 0, takes, takes)
    found = done.failure if ending == "failure" else done.verdict
    assert found is not None
    assert isinstance(found.limit, HitLimit)
    assert (found.limit.kind, found.limit.limit) == ("trial_wall", 0.2)
    assert found.limit.used is not None
    assert found.limit.used >= 0.2


async def test_making_sandboxes_counts_against_nobody(task: Task) -> None:
    """Also where a task of the agent's own makes them, and for the whole trial."""
    takes = Takes(agent=0.01, making=0.5)
    done = await attempt(with_walls(task, agent_wall=0.3, trial_wall=0.4), 0, takes, takes)
    assert done.verdict is not None
    assert done.verdict.ending == "passed"
    assert done.timings["agent"] >= 0.5


async def test_after_the_making_the_clock_goes_on(task: Task) -> None:
    """What was left before is what is left after."""
    takes = Takes(agent=FOR_EVER, making=0.2)
    done = await attempt(with_walls(task, agent_wall=0.1), 0, takes, takes)
    assert done.verdict is not None
    assert done.verdict.limit is not None
    assert done.verdict.limit.elapsed < done.timings["agent"] - 0.15


async def test_a_clock_inside_of_another_stands_together_with_it() -> None:
    """Whose turn is timed inside of a phase: neither pays for what the infrastructure does meanwhile."""
    outer, inner = Clock(), Clock()
    with outer.run(), inner.run():
        with paused():
            held = outer.used, inner.used
            await anyio.sleep(0.05)
            assert (outer.used, inner.used) == held
        await anyio.lowlevel.checkpoint()
    assert outer.used > held[0]
    assert inner.used > held[1]
    assert not outer.expired


async def test_a_cancelled_trial_did_not_reach_its_wall(task: Task) -> None:
    """Cancellation from outside goes through."""
    takes = Takes(agent=FOR_EVER)
    with anyio.move_on_after(0.05) as scope:
        await attempt(with_walls(task, agent_wall=10.0), 0, takes, takes)
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (SandboxLost("used up", "cpu_time", COUNTED), "limit"),
        (ExceptionGroup("in tasks", [SandboxLost("used up", "memory", COUNTED)]), "limit"),
        (SandboxLost("idle", "idle", msgspec.structs.replace(COUNTED, kind="idle", cause="unknown")), "infrastructure"),
        (SandboxLost("gone"), "infrastructure"),
    ],
    ids=["cpu_time", "memory", "idle", "gone"],
)
async def test_what_the_kernel_counted_in_the_agents_sandbox_is_its_own_limit(
    tmp_path: Path, task: Task, error: Exception, ending: str
) -> None:
    """It is judged with a reward of 0 and not tried again; a sandbox that went otherwise says nothing of the agent."""
    report = await run(tmp_path, task, Takes(raises=error), attempts=2)
    line = report.trials[0]
    assert (line.ending, line.reward) == (ending, 0.0 if ending == "limit" else None)
    assert line.attempts == (1 if ending == "limit" else 2)


def test_deadlines_nest(task: Task) -> None:
    """A wall around the calls that is not longer than they may take is a broken task. A task's own come first."""
    with pytest.raises(BrokenTask, match="verify_wall"):
        with_walls(task, verify_wall=task.judge.timeout)
    own = Walls(agent_wall=1.0).over(Walls(agent_wall=2.0, trial_wall=3.0))
    assert own == Walls(agent_wall=1.0, trial_wall=3.0)


@pytest.mark.parametrize(
    ("usage", "kind"),
    [(Usage(oom_kills=1), "memory"), (Usage(process_denials=9), "processes"), (Usage(full="disk"), "disk")],
)
async def test_what_the_kernel_counted_is_reported_beside_a_pass(
    tmp_path: Path, task: Task, usage: Usage, kind: str
) -> None:
    """A grandchild that was killed, a fork that was refused, a full disk: fired in an attempt, ended no trial."""
    report = await run(tmp_path, task, Takes(usage=usage))
    assert (report.trials[0].ending, report.trials[0].reward) == ("passed", 1.0)
    assert [(line.kind, line.cause, line.attempts, line.trials) for line in report.limits] == [(kind, "task", 1, 0)]
    assert kind in render(report)
