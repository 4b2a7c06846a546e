"""Trials whose sandboxes are lost in every way that the scripted runtime knows: a new attempt, never a score."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from proofbox.errors import SandboxLost
from proofbox.model.task import Candidate, Task
from proofbox.model.verdict import Verdict
from proofbox.runtime import registry
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.sandbox.host import Host
from proofbox.trial.attempts import Retry


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of these tests."""
    return "asyncio"


@pytest.fixture
async def fake() -> AsyncIterator[FakeRuntime]:
    """The scripted runtime; every sandbox must be gone in the end."""
    runtime = registry.runtime("fake")
    assert isinstance(runtime, FakeRuntime)
    scripts = runtime.scripts
    yield runtime
    runtime.scripts = scripts
    assert runtime.live == {}


@dataclass
class InSandbox:
    """A verifier that runs one command in a new sandbox and goes by its exit code."""

    host: Host

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        """What a user's own verifier does."""
        async with self.host.open_sandbox() as box:
            result = await box.run("echo judged; exit 0")
            if result.returncode is None:
                raise SandboxLost(f"lost while {task.id} was judged: {result.outcome}")
            return Verdict(ending="passed" if result.ok else "failed", log=result.stdout_bytes)


@pytest.mark.parametrize(
    "fault",
    [
        Faults(create_fails="mount"),
        Faults(boot_fails="pivot_root"),
        Faults(lost="command"),
        Faults(lost="frame"),
        Faults(lie="malformed"),
        Faults(lie="oversized"),
        Faults(version=99),
    ],
    ids=str,
)
async def test_a_sandbox_lost_in_any_way_is_a_new_attempt_in_a_new_sandbox(
    lab: Any, tasks: Callable[..., list[Task]], fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch, fault: Faults
) -> None:
    """The first sandbox breaks, the second does not: one trial, two recorded attempts, passed; nothing is left."""
    monkeypatch.setattr("proofbox.trial.run.Retry", lambda attempts: Retry(attempts, first=0.0))
    made: list[str] = []

    def script(spec: Any) -> Faults:
        made.append(spec.id)
        return fault if len(made) == 1 else Faults()

    host = await Host.local("fake", "none", allow_unisolated=True)
    fake.scripts = script
    verifier = InSandbox(host)
    lab.judge = verifier.judge
    report = await lab.run(tasks("passed"), attempts=2)
    await host.aclose()
    assert report.endings["passed"] == 1
    assert report.first_attempt["infrastructure"] == 1
    assert report.attempts == 2
    assert len(set(made)) == 2
    assert report.failures[0].code in ("sandbox_lost", "create_failed", "protocol_violation")


async def test_a_host_that_makes_no_sandbox_gives_no_score_at_all(
    lab: Any, tasks: Callable[..., list[Task]], fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every creation fails: no reward is zero, all are absent, and the reason is typed."""
    monkeypatch.setattr("proofbox.trial.run.Retry", lambda attempts: Retry(attempts, first=0.0))
    host = await Host.local("fake", "none", allow_unisolated=True)
    fake.scripts = lambda spec: Faults(create_fails="cgroup")
    lab.judge = InSandbox(host).judge
    report = await lab.run(tasks("passed", "failed"), n=2, attempts=2)
    await host.aclose()
    assert report.endings == {"passed": 0, "failed": 0, "limit": 0, "infrastructure": 4, "not_run": 0}
    assert {trial.reward for trial in report.trials} == {None}
    assert [(line.code, line.reason, line.attempts) for line in report.failures] == [("create_failed", "cgroup", 8)]
