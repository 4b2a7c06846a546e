"""How many sandboxes fit: doctor and a run say it before they are made, each with limits that are really lower."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.cli.test_doctor import within

pytestmark = pytest.mark.container

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"

Told = Callable[..., dict[str, Any]]


@pytest.fixture
def told(argv: list[str], environment: dict[str, str]) -> Told:
    """What doctor says of ``native`` as JSON, run by ``before``."""

    def run(*words: str, before: list[str] | None = None) -> dict[str, Any]:
        ran = subprocess.run(
            [*(before or []), *argv, "doctor", "--json", "--runtime", "native", *words],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )
        assert ran.stdout.startswith("{"), ran.stdout + ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        assert found["ok"] is (ran.returncode == 0)
        if not found["runtimes"][0]["usable"] and before is None:
            pytest.skip(str(found["runtimes"][0]["missing"]))
        return found

    return run


def limits(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the one runtime, by what they are."""
    return {limit["what"]: limit for limit in found["runtimes"][0]["limits"]}


def test_the_json_is_as_documented(told: Told) -> None:
    """Every field has a line on the page, and every line is a field."""
    found = told("--concurrency", "2")
    tables = [set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) for part in PAGE.read_text().split("| field")]
    (runtime,) = found["runtimes"]
    assert [set(found), set(found["unclean_starts"]), set(runtime), set(runtime["limits"][0])] == tables[1:]
    assert (found["format"], found["chosen"], found["concurrency"]) == (1, "native", 2)
    assert runtime["holds"] == min(limit["holds"] for limit in runtime["limits"] if limit["hard"])


def test_the_command_line_takes_all_open_files_that_it_may(told: Told) -> None:
    """The soft limit is for programs that cannot do with more."""
    few = limits(told(before=["prlimit", "--nofile=200:2000"]))["open files of this process"]
    assert few["limit"] == 2000
    assert few["each"] == 3


def test_the_limit_that_would_be_hit_is_named_with_its_command(told: Told) -> None:
    """Switched lower in a namespace, where it is really the limit: 100 sandboxes cannot have a network each."""
    before = within("echo 40 > /proc/sys/user/max_net_namespaces")
    found = told("--concurrency", "100", before=before)
    if not found["runtimes"][0]["usable"]:
        pytest.skip(str(found["runtimes"][0]["missing"]))
    assert not found["ok"]
    assert found["chosen"] == "native"
    low = limits(found)["net namespaces"]
    assert (low["limit"], low["each"], low["hard"]) == (40, 1, True)
    assert low["holds"] <= 40
    assert re.fullmatch(r"sysctl -w user\.max_net_namespaces=(128|256)", low["remedy"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may have as many processes as it likes")
def test_a_users_limit_on_processes_is_told(told: Told) -> None:
    """Its processes are counted; with too few for a single sandbox it is what keeps one from being made."""
    some = limits(told(before=["prlimit", "--nproc=2000"]))["processes of this user"]
    assert (some["limit"], some["each"], some["hard"]) == (2000, 3, True)
    assert some["used"] > 0
    for few in ("1", "8"):
        found = told(before=["prlimit", f"--nproc={few}"])["runtimes"][0]
        assert not found["usable"]
        (item,) = found["missing"]
        assert re.search("ulimit -u unlimited", item["remedy"]), item


def test_the_text_names_each_limit_that_is_too_low(proofbox: Run) -> None:
    """Two lines for each, and a last one with what it comes to; the command is never broken into lines."""
    done = proofbox("doctor", "--runtime", "native", "--concurrency", "100000000", COLUMNS="60")
    text = done.stdout.decode()
    if "not usable" in text:
        pytest.skip(text)
    assert done.returncode == 1
    assert re.search(r"^  too low +process ids: enough for", text, re.MULTILINE)
    assert re.search(r"^    remedy +sysctl -w kernel\.pid_max=\d+$", text, re.MULTILINE)
    assert text.splitlines()[-1].startswith("100000000 of them at one time do not fit")


def test_a_run_that_does_not_fit_is_refused_before_its_first_trial(
    argv: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """With every limit that it would meet; nothing is recorded. With fewer at a time it goes."""
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"task": "*", "turns": [["true"]]}))
    words = [*argv, "run", "humaneval", "--agent", f"script:{script}", "--runtime", "native", "--tasks"]
    few = ["prlimit", "--nofile=350:350"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*few, *words, *more], capture_output=True, text=True, env=environment, timeout=300)

    refused = run("HumanEval/1*", "-j", "200")
    if "runtime 'native' refused" in refused.stderr:
        pytest.skip(refused.stderr)
    assert refused.returncode == 1
    assert "76 sandboxes of runtime 'native' at one time refused: open files of this process: " in refused.stderr
    assert "ulimit -n 512" in refused.stderr
    assert not (tmp_path / "runs").exists()
    done = run("HumanEval/1?", "-j", "2")
    assert done.returncode == 0, done.stderr
