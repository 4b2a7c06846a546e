"""The agents that come with Proofbox: the right answer, no answer, and answers from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proofbox.errors import BrokenTask
from proofbox.model.task import Candidate, Task


class ReferenceAgent:
    """Hands in each task's reference solution. All of its trials must pass, or the task is broken."""

    name = "reference"

    async def act(self, task: Task, index: int) -> Candidate | None:
        """Raises ``BrokenTask`` for a task without a reference."""
        if task.reference is None:
            raise BrokenTask(f"task {task.id} has no reference solution; the reference agent needs one")
        return Candidate(completion=task.reference)


class NopAgent:
    """Hands in a function that does nothing. All of its trials must fail, or the task is broken."""

    name = "nop"

    async def act(self, task: Task, index: int) -> Candidate | None:
        """Always the same."""
        return Candidate(completion="    pass\n")


class SamplesAgent:
    """Hands in completions that were written before: trial ``index`` gets the one at that place of its task."""

    name = "samples"

    def __init__(self, completions: Mapping[str, Sequence[str]]) -> None:
        self._completions = completions

    async def act(self, task: Task, index: int) -> Candidate | None:
        """None beyond the completions of a task, and for a task that has none."""
        some = self._completions.get(task.id, ())
        return Candidate(completion=some[index]) if index < len(some) else None
