"""A run: what was asked for, on what, and with what. It is written once, before the first trial, and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from proofbox.errors import InvalidInput
from proofbox.model.ids import TrialId, digest_of
from proofbox.model.isolation import Isolation
from proofbox.model.limits import Limits, Walls
from proofbox.model.spec import Level
from proofbox.model.task import Task

FORMAT: Final = 1
"""Of ``run.json`` and of each line of the log. A reader refuses what is newer."""


class StopRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When infrastructure failures end a run early. Counted over the trials that ended in this process.

    first   stop if the first so many trials were all infrastructure failures; 0 turns it off
    share   stop if more than this share of them are,
    after   once so many ended
    """

    first: int = 10
    share: float = 0.5
    after: int = 20


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the caller asked for, in the words of the command line, so that a resume can rebuild it.

    ``n`` trials a task (a samples file says by itself how many), at most ``jobs`` at a time, each with up to
    ``attempts`` tries in one process.
    """

    tasks: str
    agent: str
    samples: str | None = None
    n: int = 1
    jobs: int = 4
    attempts: int = 3
    stop: StopRule = StopRule()
    runtime: str | None = None
    level: Level = "container"
    allow_unisolated: bool = False
    limits: Limits = Limits()
    walls: Walls = Walls()
    """For the tasks that are silent about them."""
    ks: tuple[int, ...] = (1, 10, 100)
    timeout: float | None = None
    """Seconds that stand in for each task's own time limit; None leaves it."""

    def __post_init__(self) -> None:
        for name in ("n", "jobs", "attempts"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be at least 1")


class BrokenLine(msgspec.Struct, frozen=True):
    """A line of a samples file (counted from 1) that cannot be used. It counts as a trial that was not run."""

    line: int
    message: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The denominator: how many trials of each task were asked for, and the lines of which no trial could be made."""

    trials: dict[str, int]
    broken: tuple[BrokenLine, ...] = ()

    @classmethod
    def uniform(cls, tasks: Iterable[Task], n: int) -> Plan:
        """``n`` trials of each."""
        return cls(trials={task.id: n for task in tasks})

    @property
    def asked(self) -> int:
        return sum(self.trials.values()) + len(self.broken)

    def fair(self) -> list[TrialId]:
        """Round robin: the first trial of every task, then the second of every task that has one, ..."""
        rounds = max(self.trials.values(), default=0)
        return [TrialId(task, i) for i in range(rounds) for task, n in self.trials.items() if i < n]


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials ran on. ``limits`` are the effective ones; ``templates`` maps name to digest."""

    runtime: str
    level: Level
    templates: dict[str, str] = {}
    limits: Limits = Limits()
    enforces: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    versions: dict[str, str] = {}
    """proofbox, python, kernel, machine."""
    isolation: Isolation | None = None
    """As it was found on a sandbox that was opened before the first trial."""


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of every scope as they are for these tasks, whoever set them; None is no limit.

    ``limits`` are for each of their sandboxes and its commands, ``walls`` for the trial, its phases and turns;
    ``calls``: seconds of a candidate's calls.
    """

    tasks: tuple[str, ...]
    limits: Limits
    walls: Walls
    calls: float


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``."""

    format: int = FORMAT
    id: str
    at: float
    config: RunConfig
    plan: Plan
    task_set: str
    """Digest over all tasks, their tests included."""
    tasks: int = 0
    """How many tasks the set has; a plan from a samples file may name fewer."""
    samples: str | None = None
    host: HostFacts
    limits: tuple[InForce, ...] = ()
    """One for each set of tasks that have the same."""

    def differences(self, other: RunRecord) -> tuple[str, ...]:
        """What makes the trials of another record not belong to this run, a sentence each. Empty: it may go on."""
        return tuple(
            f"{what} was {was!r}, now {now!r}"
            for what, was, now in (
                ("the digest of the task set", self.task_set, other.task_set),
                ("the digest of the samples", self.samples, other.samples),
                ("the agent", self.config.agent, other.config.agent),
                ("n", self.config.n, other.config.n),
                ("the number of trials asked for", self.plan.asked, other.plan.asked),
                ("the trials of each task", digest_of(self.plan), digest_of(other.plan)),
                ("the template", self.host.templates, other.host.templates),
                ("the runtime", self.host.runtime, other.host.runtime),
                ("the level of isolation", self.host.level, other.host.level),
                ("the limits of phases", self.config.walls.asked(), other.config.walls.asked()),
                ("the limits", _set(self.host.limits), _set(other.host.limits)),
            )
            if was != now
        ) + self._weaker(other)

    def _weaker(self, other: RunRecord) -> tuple[str, ...]:
        was, now = self.host.isolation, other.host.isolation
        less = now.weaker_than(was) if was is not None and now is not None else ()
        return tuple(f"its sandboxes would be kept apart less: {what}" for what in less)


def _set(limits: Limits) -> Mapping[str, float]:
    return {kind: getattr(limits, kind) for kind in limits.asked()}


def limits_in_force(tasks: Iterable[Task], effective: Limits) -> tuple[InForce, ...]:
    """Of tasks that the run has had its say about; ``effective`` is what a sandbox gets where a task is silent."""
    groups: dict[tuple[Limits, Walls, float], list[str]] = {}
    for task in tasks:
        key = (task.limits.over(effective), task.walls, task.judge.timeout)
        groups.setdefault(key, []).append(task.id)
    return tuple(
        InForce(tasks=tuple(ids), limits=limits, walls=walls, calls=calls)
        for (limits, walls, calls), ids in groups.items()
    )


def task_set_digest(tasks: Sequence[Task]) -> str:
    """Over all tasks in their order. Raises ``InvalidInput`` where two have the same id."""
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise InvalidInput(f"two tasks have the id {task.id!r}; ids name trials and must be unique in a set")
        seen.add(task.id)
    return digest_of(list(tasks))
