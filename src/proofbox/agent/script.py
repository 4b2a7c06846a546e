"""An agent whose turns are written down beforehand, in a file of JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from proofbox.errors import BrokenTask
from proofbox.model.ids import digest
from proofbox.model.task import Task
from proofbox.model.turn import Decision, Turn


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    task: str
    turns: list[Decision | list[str]]


class ScriptAgent:
    """Each line is ``{"task": PATTERN, "turns": [TURN, ...]}``: the first one whose pattern fits a task is its script.

    A turn is a list of commands, or an object with the fields of ``Decision``. What came of them changes nothing.
    """

    def __init__(self, path: Path) -> None:
        """Blocks. Raises ``BrokenTask``, naming the line, for what cannot be read."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise BrokenTask(f"{path}: {error.strerror}") from error
        self.name = f"script:{path.name}"
        self.digest = digest(raw)
        self._path = path
        self._scripts: list[tuple[str, tuple[Decision, ...]]] = []
        for number, line in enumerate(raw.splitlines(), 1):
            if not line.strip():
                continue
            try:
                read = msgspec.json.decode(line, type=_Line)
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise BrokenTask(f"{path}, line {number}: {error}") from error
            turns = (each if isinstance(each, Decision) else Decision(commands=tuple(each)) for each in read.turns)
            self._scripts.append((read.task, tuple(turns)))

    async def decide(self, task: Task, index: int, turns: Sequence[Turn]) -> Decision | None:
        """Raises ``BrokenTask`` for a task that no line is about."""
        for pattern, script in self._scripts:
            if fnmatchcase(task.id, pattern):
                return script[len(turns)] if len(turns) < len(script) else None
        raise BrokenTask(f"{self._path}: no line is about task {task.id}")
