"""What every agent is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from proofbox.model.task import Candidate, Task


@runtime_checkable
class Agent(Protocol):
    """Does the work of trials. ``name`` goes into the record of the run. Called concurrently, for each attempt anew."""

    name: str

    async def act(self, task: Task, index: int) -> Candidate | None:
        """The candidate for trial ``index`` (from 0) of the task; None if there is none: the trial is not run."""
        ...
