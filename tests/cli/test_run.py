"""`proofbox run`: what is printed, the exit status, and a run that was interrupted and goes on."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

from .conftest import Run

FEW = "HumanEval/1?"
"""Ten of the 164."""


def result(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_reference_solutions_pass_and_the_status_is_0(proofbox: Run) -> None:
    """Ten reference solutions are judged as passed; the report is complete and says where the traces are."""
    done = proofbox("run", "humaneval", "--agent", "reference", "--tasks", FEW, "-j", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = result(done)
    assert report["asked"] == 10
    assert report["endings"] == {"passed": 10, "failed": 0, "limit": 0, "infrastructure": 0, "not_run": 0}
    assert report["pass_at_k"]["strict"]["pass@1"] == 1.0
    assert (Path(report["path"]) / "events.jsonl").is_file()


def test_a_script_acts_in_a_sandbox_and_what_it_leaves_is_judged(proofbox: Run, tmp_path: Path) -> None:
    """It sees the prompt and writes its completion; a task that it leaves nothing for is wrong. All limits are told."""
    script = tmp_path / "script.jsonl"
    lines = [
        {
            "task": "HumanEval/53",
            "turns": [["grep -c 'def add' prompt.py"], ["echo '    return x + y' > completion.py"]],
        },
        {"task": "*", "turns": [["true"]]},
    ]
    script.write_text("\n".join(map(json.dumps, lines)))
    walls = ("--wall", "setup=2m", "--wall", "agent=5m", "--wall", "turn=1m")
    done = proofbox("run", "humaneval", "--agent", f"script:{script}", "--tasks", "HumanEval/5[34]", *walls)
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert "setup 120 s, agent 300 s, turn 60 s, verify none, trial none" in said
    report = result(proofbox("report", "--json"))
    assert [(trial["task"], trial["ending"]) for trial in report["trials"]] == [
        ("HumanEval/53", "passed"),
        ("HumanEval/54", "failed"),
    ]
    assert report["record"]["limits"][0]["walls"]["turn_wall"] == 60


def test_doing_nothing_fails_and_the_status_is_0(proofbox: Run) -> None:
    """Wrong answers are results, not errors: the run did what it was asked to do."""
    done = proofbox("run", "humaneval", "--agent", "nop", "--tasks", FEW, "-j", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert result(done)["endings"]["failed"] == 10


def test_what_is_in_force_is_said_before_the_first_trial(proofbox: Run) -> None:
    """Runtime, level and the effective limits come first, then progress, and the report goes to standard output."""
    done = proofbox(
        "run",
        "humaneval",
        "--agent",
        "reference",
        "--tasks",
        "HumanEval/2",
        "--limit",
        "processes=77",
        "--timeout",
        "9s",
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert re.search(r"^runtime +\w+ \(level container\)", said, re.MULTILINE)
    assert "processes 77" in said
    assert said.index("processes 77") < said.index("1/1 trials")
    assert b"\x1b" not in done.stdout + done.stderr
    assert "passed" in done.stdout.decode()


def test_a_samples_file_is_judged_and_a_broken_line_is_named(proofbox: Run, tmp_path: Path) -> None:
    """The good lines are judged, the broken one is counted as not run and named by its number, and the status is 1."""
    lines = [
        json.dumps({"task_id": "HumanEval/2", "completion": "    return number % 1.0\n"}),
        json.dumps({"task_id": "HumanEval/2", "completion": "    return 7\n"}),
        '{"task_id": "HumanEval/2"',
        json.dumps({"task_id": "HumanEval/9999", "completion": ""}),
    ]
    samples = tmp_path / "samples.jsonl"
    samples.write_text("\n".join(lines) + "\n")
    done = proofbox("run", "humaneval", "--samples", str(samples), "-j", "2", "--k", "1,2", "--json")
    assert done.returncode == 1, done.stderr
    report = result(done)
    assert report["asked"] == 4
    assert report["endings"] == {"passed": 1, "failed": 1, "limit": 0, "infrastructure": 0, "not_run": 2}
    assert [line["line"] for line in report["broken"]] == [3, 4]
    assert report["pass_at_k"]["judged"] == {"pass@1": 0.5, "pass@2": 1.0}


def test_a_report_can_be_read_again(proofbox: Run) -> None:
    """`proofbox report` shows the latest run or the named one, and `proofbox runs` lists it."""
    first = result(proofbox("run", "humaneval", "--agent", "reference", "--tasks", "HumanEval/3", "--json"))
    assert result(proofbox("report", "--json")) == first
    assert result(proofbox("report", first["run"], "--json")) == first
    assert first["run"] in proofbox("runs").stdout.decode()
    assert b"passed" in proofbox("report").stdout


def test_an_interrupted_run_goes_on_where_it_was(argv: list[str], environment: dict[str, str], proofbox: Run) -> None:
    """Ctrl-C: status 130, the command that goes on is shown, and it repeats nothing that was judged."""
    command = [*argv, "run", "humaneval", "--agent", "reference", "-n", "2", "-j", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if re.match(rb"\d+/328 trials", line):
                break
        running.send_signal(signal.SIGINT)
        said = running.stderr.read().decode()
        assert running.wait(timeout=60) == 130, said
    again = re.search(r"^ +proofbox (run --resume \S+)$", said, re.MULTILINE)
    assert again, said
    before = result(proofbox("report", "--json"))
    assert before["state"] == "cancelled"
    assert 0 < before["endings"]["passed"] < 328
    done = proofbox(*shlex.split(again[1]), "--json", "-j", "4")
    assert done.returncode == 0, done.stderr
    report = result(done)
    assert report["run"] == before["run"]
    assert report["endings"]["passed"] == 328
    assert report["attempts"] - report["interrupted"] == 328


def test_a_resume_takes_no_new_isolation_or_limits(proofbox: Run) -> None:
    """An option that would be left out in silence is an error: who asks for a level gets it, or is told."""
    done = proofbox("run", "humaneval", "--agent", "reference", "--tasks", "HumanEval/2", "--json")
    assert done.returncode == 0, done.stderr
    for option in ("--level=vm", "--allow-unisolated", "--limit=processes=9"):
        refused = proofbox("run", "--resume", "latest", option)
        assert refused.returncode == 2
        assert "with --resume, only -j and --attempts can be chosen anew" in refused.stderr.decode()
    assert proofbox("run", "--resume", "latest", "-j", "1", "--attempts", "1").returncode == 0
