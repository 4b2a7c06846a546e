"""The whole line with real sandboxes: HumanEval tasks, built-in agents, the function verifier, the log, the report."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from proofbox.agent.builtin import NopAgent, ReferenceAgent, SamplesAgent
from proofbox.agent.contract import Agent
from proofbox.errors import Refused
from proofbox.model.run import Plan, RunConfig
from proofbox.model.task import Task
from proofbox.model.trace import AttemptEnded
from proofbox.sandbox.host import Host
from proofbox.store.render import render
from proofbox.store.report import Report
from proofbox.store.runs import Store
from proofbox.tasks import humaneval
from proofbox.trial.facts import host_facts
from proofbox.trial.run import run_tasks
from proofbox.verify.function import FunctionVerifier

pytestmark = pytest.mark.container


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of these tests."""
    return "asyncio"


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """This machine with its default runtime; skipped where there is none, unless ``PROOFBOX_REQUIRE`` wants one."""
    try:
        found = await Host.local()
    except Refused as refused:
        if os.environ.get("PROOFBOX_REQUIRE"):
            raise
        pytest.skip(str(refused))
    yield found
    await found.aclose()


@pytest.fixture
def some() -> list[Task]:
    """The first six problems."""
    return humaneval.load()[:6]


async def score(
    host: Host, tasks: list[Task], agent: Agent, root: Path, *, n: int = 1, plan: Plan | None = None
) -> Report:
    """One run of them."""
    facts = await host_facts(host, tasks)
    config = RunConfig(tasks="humaneval", agent=agent.name, n=n, jobs=3)
    async with FunctionVerifier(host) as verifier:
        return await run_tasks(config, tasks, agent, verifier, facts, Store(root), plan=plan)


async def test_references_pass_and_doing_nothing_fails(host: Host, some: list[Task], tmp_path: Path) -> None:
    """All trials of the one, none of the other; every attempt has a candidate, a verdict, and its phases timed."""
    right = await score(host, some, ReferenceAgent(), tmp_path, n=2)
    wrong = await score(host, some, NopAgent(), tmp_path)
    assert right.endings == {"passed": 12, "failed": 0, "limit": 0, "infrastructure": 0, "not_run": 0}
    assert right.pass_at_k.judged == right.pass_at_k.strict == {"pass@1": 1.0}
    assert wrong.endings == {"passed": 0, "failed": 6, "limit": 0, "infrastructure": 0, "not_run": 0}
    assert {"queue", "agent", "create", "start", "calls", "verify", "destroy"} <= set(right.timings)
    run = Store(tmp_path).open(right.run)
    ends = [event for event in run.events() if isinstance(event, AttemptEnded)]
    assert {run.payload(end.candidate).decode() for end in ends if end.candidate} == {task.reference for task in some}
    assert right.record.host.templates["host"].startswith("sha256:")
    assert "pass@1  1.0000  1.0000" in render(right)


async def test_samples_are_scored_like_the_reference_evaluator_scores_them(
    host: Host, some: list[Task], tmp_path: Path
) -> None:
    """Right, wrong, slow and crashing completions of two tasks: each told apart, and pass@k over them."""
    first, second = some[0], some[1]
    assert first.reference is not None
    assert second.reference is not None
    completions = {
        first.id: [first.reference, "    return None\n", "    while True: pass\n"],
        second.id: ["    import os; os._exit(0)\n", "    not python\n", second.reference],
    }
    plan = Plan(trials={task: len(texts) for task, texts in completions.items()})
    report = await score(host, some, SamplesAgent(completions), tmp_path, plan=plan)
    endings = {(trial.task, trial.index): trial.ending for trial in report.trials}
    assert [endings[first.id, i] for i in range(3)] == ["passed", "failed", "limit"]
    assert [endings[second.id, i] for i in range(3)] == ["failed", "failed", "passed"]
    assert report.pass_at_k.judged == {"pass@1": pytest.approx(1 / 3)}
    # On a host that is busy with others an attempt may have been its fault, and the next one decided.
    assert [(line.kind, line.trials) for line in report.limits if line.trials] == [("command_wall", 1)]


async def test_cancelled_in_the_middle_it_leaves_no_sandbox_and_goes_on_later(
    host: Host, some: list[Task], tmp_path: Path
) -> None:
    """Cancellation while candidates loop: all sandboxes are gone; the resume judges what was left, and nothing else."""
    looping = SamplesAgent({task.id: ["    while True: pass\n"] for task in some})
    facts = await host_facts(host, some)
    config = RunConfig(tasks="humaneval", agent="samples", jobs=3)
    store = Store(tmp_path)
    with anyio.move_on_after(1.0):
        async with FunctionVerifier(host) as verifier:
            await run_tasks(config, some, looping, verifier, facts, store)
    assert not host._factory.lives
    answers = SamplesAgent({task.id: [task.reference or ""] for task in some})
    async with FunctionVerifier(host) as verifier:
        report = await run_tasks(config, some, answers, verifier, facts, store, resume="latest")
    assert report.endings["passed"] == 6
    assert report.interrupted == report.attempts - 6 > 0
