"""What a trial costs outside of its sandboxes: scheduling, the trace, the disk. Design section 10 allows 1 ms."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import anyio.lowlevel

from bench.measure import Row, median
from proofbox.model.run import HostFacts, RunConfig
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.store.report import read_report
from proofbox.store.runs import Store
from proofbox.trial.run import run_tasks

JOBS = (1, 4, 64)


class Instant:
    """Agent and verifier in one that take no time, so that all that is measured is ours."""

    name = "instant"

    async def act(self, task: Task, index: int) -> Candidate | None:
        """A candidate of a usual size."""
        return Candidate(completion="    return sorted(numbers)[-1]\n" * 12)

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        """Passed, after one turn of the event loop."""
        await anyio.lowlevel.checkpoint()
        return Verdict(ending="passed", timings={"create": 0.002, "start": 0.01, "calls": 0.001, "destroy": 0.001})


async def measure(quick: bool) -> list[Row]:
    """Milliseconds a trial from opening the run to its report, everything durable; and the report alone."""
    tests = FunctionTests(prompt="", entry_point="f", test="")
    tasks = [Task(id=f"T/{i}", instruction="", judge=tests) for i in range(164)]
    n, rounds = (2, 1) if quick else (10, 5)
    facts = HostFacts(runtime="none", level="none")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:  # a disk: /tmp may be memory, where a sync costs nothing
        store = Store(root)
        for jobs in JOBS:
            took = []
            for _ in range(rounds):
                config = RunConfig(tasks="bench", agent="instant", n=n, jobs=jobs)
                began = time.perf_counter()
                await run_tasks(config, tasks, Instant(), Instant(), facts, store)
                took.append((time.perf_counter() - began) * 1e3 / (n * len(tasks)))
            note = f"{n * len(tasks)} trials, {jobs} at a time, log and report included"
            rows.append(Row("trial", f"overhead, -j {jobs}", "proofbox", median(took), "ms", note=note))
        began = time.perf_counter()
        report = read_report(store.open("latest"))
        took_report = (time.perf_counter() - began) * 1e3
        rows.append(Row("trial", f"report of {report.asked} trials", "proofbox", took_report, "ms"))
    return rows
