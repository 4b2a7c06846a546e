"""A group: the n trials of one task, from the same start. What training takes from a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proofbox.model.ids import TrialId
from proofbox.model.run import Plan
from proofbox.model.trace import Event, TrialEnded


@dataclass(frozen=True, slots=True)
class Group:
    """``rewards`` has one entry for each trial that was asked for, in order. None: there is no reward, so mask it.

    None is not 0.0: it says nothing about the agent and must move no baseline.
    """

    task: str
    rewards: tuple[float | None, ...]

    @property
    def judged(self) -> tuple[float, ...]:
        return tuple(reward for reward in self.rewards if reward is not None)


def groups(plan: Plan, events: Iterable[Event]) -> Iterator[Group]:
    """One group for each task that was asked for, whatever became of it."""
    rewards = {event.trial: event.reward for event in events if isinstance(event, TrialEnded)}
    for task, n in plan.trials.items():
        yield Group(task, tuple(rewards.get(TrialId(task, index)) for index in range(n)))
