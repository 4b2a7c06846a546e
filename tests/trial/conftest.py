"""A verifier and an agent of the kind that users write: what each trial does is said by its task's instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from proofbox.errors import SandboxLost
from proofbox.model.outcome import HitLimit
from proofbox.model.run import HostFacts, Plan, RunConfig, StopRule
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.store.report import Report
from proofbox.store.runs import RunDir, Store
from proofbox.trial.run import run_tasks
from proofbox.trial.runner import Progress


def make_tasks(*instructions: str) -> list[Task]:
    """One task for each instruction: passed, failed, limit, none, lost, lost-once, hang."""
    judge = FunctionTests(prompt="def f():\n", entry_point="f", test="def check(candidate): ...")
    return [Task(id=f"T/{i}", instruction=text, judge=judge) for i, text in enumerate(instructions)]


@dataclass
class Lab:
    """Agent and verifier in one, with a count of what they did."""

    store: Store
    name: str = "lab"
    acted: Counter[tuple[str, int]] = field(default_factory=Counter)
    order: list[tuple[str, int]] = field(default_factory=list)
    alive: int = 0
    peak: int = 0
    pause: float = 0.0

    async def act(self, task: Task, index: int) -> Candidate | None:
        self.acted[task.id, index] += 1
        self.order.append((task.id, index))
        if task.instruction == "none":
            return None
        return Candidate(completion=f"    return {index}\n")

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        self.alive += 1
        self.peak = max(self.peak, self.alive)
        try:
            return await self._judge(task, int(candidate.completion.split()[1]))
        finally:
            self.alive -= 1

    async def _judge(self, task: Task, index: int) -> Verdict:
        await anyio.sleep(self.pause)
        kind = task.instruction
        if kind == "lost" or (kind == "lost-once" and self.acted[task.id, index] == 1):
            raise SandboxLost(f"the sandbox of {task.id} went away", "memory")
        if kind == "hang":
            await anyio.sleep_forever()
        if kind == "limit":
            return Verdict(ending="limit", limit=HitLimit(kind="wall", limit=3.0, used=None, elapsed=3.0, cause="task"))
        return Verdict(
            ending="failed" if kind == "failed" else "passed", reason=kind, log=b"said \xff", timings={"calls": 0.01}
        )

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        n: int = 1,
        jobs: int = 4,
        attempts: int = 1,
        stop: StopRule | None = None,
        plan: Plan | None = None,
        resume: str | None = None,
        on_event: Callable[[Progress], object] | None = None,
    ) -> Report:
        config = RunConfig(
            tasks="lab",
            agent=self.name,
            n=n,
            jobs=jobs,
            attempts=attempts,
            stop=stop or StopRule(first=0, after=10_000),
        )
        host = HostFacts(runtime="fake", level="container", templates={"host": "sha256:0"})
        return await run_tasks(config, tasks, self, self, host, self.store, plan=plan, resume=resume, on_event=on_event)

    def latest(self) -> RunDir:
        return self.store.open("latest")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(Store(tmp_path / "runs"))


@pytest.fixture
def tasks() -> Callable[..., list[Task]]:
    return make_tasks
