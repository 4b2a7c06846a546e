"""What every agent is: one that hands in a candidate, or one that acts in a sandbox, turn by turn, until it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from proofbox.model.task import Candidate, Task
from proofbox.model.turn import Decision, Turn


@runtime_checkable
class Agent(Protocol):
    """Does the work of trials. ``name`` goes into the record of the run. Called concurrently, for each attempt anew."""

    name: str

    async def act(self, task: Task, index: int) -> Candidate | None:
        """The candidate for trial ``index`` (from 0) of the task; None if there is none: the trial is not run."""
        ...


@runtime_checkable
class TurnAgent(Protocol):
    """Decides what is done in a sandbox that is made for each attempt, from ``Task.workspace``.

    The sandbox is not its own: its decisions are carried out, and it is shown what came of them. It is called
    concurrently, and keeps nothing between its calls but what ``turns`` tells: so it can be asked again from any turn.
    """

    name: str

    async def decide(self, task: Task, index: int, turns: Sequence[Turn]) -> Decision | None:
        """The next decision in trial ``index`` (from 0), after these turns; None: it is done, and is judged."""
        ...
