"""From what a user asked for to what a run is made of: tasks, agent, plan; and the lines that say so beforehand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from proofbox.agent.builtin import NopAgent, ReferenceAgent, SamplesAgent
from proofbox.agent.contract import Agent, TurnAgent
from proofbox.agent.script import ScriptAgent
from proofbox.cli import parse
from proofbox.errors import InvalidInput
from proofbox.model.run import HostFacts, Plan, RunConfig, limits_in_force
from proofbox.model.task import Task
from proofbox.store.render import whose
from proofbox.tasks import humaneval
from proofbox.trial.run import settled

SCRIPT: Final = "script:"
"""Before the path of a script, as the name of an agent."""
SCOPES: Final = 5
"""Sets of tasks with the same limits that are shown; the record of the run has all."""


@dataclass(frozen=True, slots=True)
class Work:
    """``samples`` is the digest of the file behind the agent, ``set_size`` how many tasks the whole set has."""

    tasks: list[Task]
    agent: Agent | TurnAgent
    plan: Plan
    samples: str | None
    set_size: int


def work(config: RunConfig, pattern: str | None, only: Collection[str] | None) -> Work:
    """Loads the task set and, if it is asked for, the samples. ``only`` names the tasks of a run that goes on.

    Raises ``InvalidInput`` where nothing is left to do, ``BrokenTask`` for what cannot be read. Blocks.
    """
    everything = humaneval.load()
    chosen = [task for task in everything if _is_chosen(task.id, pattern, only)]
    if not chosen:
        raise InvalidInput(f"no task of {config.tasks} matches {pattern!r}; such as: {everything[0].id}")
    if config.timeout is not None:
        chosen = [_with_timeout(task, config.timeout) for task in chosen]
    if config.samples is None:
        plan = Plan.uniform(chosen, config.n)
        if config.agent.startswith(SCRIPT):
            script = ScriptAgent(Path(config.agent.removeprefix(SCRIPT)))
            return Work(chosen, script, plan, script.digest, len(everything))
        agent: Agent = NopAgent() if config.agent == "nop" else ReferenceAgent()
        return Work(chosen, agent, plan, None, len(everything))
    read = humaneval.read_samples(config.samples, {task.id for task in everything})
    ids = {task.id for task in chosen}
    plan = Plan(trials={task: n for task, n in read.plan.trials.items() if task in ids}, broken=read.broken)
    if not plan.asked:
        raise InvalidInput(
            f"{config.samples} has no sample" + (f" of a task that matches {pattern!r}" if pattern else "")
        )
    tasks = [task for task in chosen if task.id in plan.trials]
    return Work(tasks, SamplesAgent(read.completions), plan, read.digest, len(everything))


def _is_chosen(task: str, pattern: str | None, only: Collection[str] | None) -> bool:
    return (pattern is None or fnmatchcase(task, pattern)) and (only is None or task in only)


def _with_timeout(task: Task, timeout: float) -> Task:
    return msgspec.structs.replace(task, judge=msgspec.structs.replace(task.judge, timeout=timeout))


def at_once(config: RunConfig, asked: Work, judged: int) -> int:
    """Sandboxes that the run holds at one time, at most, where ``judged`` candidates are judged at once. A trial has
    the agent's or the candidate's, never both.
    """
    acting = config.jobs if isinstance(asked.agent, TurnAgent) else min(config.jobs, judged)
    return min(acting, asked.plan.asked)


def describe(facts: HostFacts, config: RunConfig, asked: Work) -> str:
    """What is in force, before the first trial."""
    lines = [
        (
            f"tasks        {len(asked.tasks)} of the {asked.set_size} of {config.tasks}, {asked.plan.asked} trials, "
            f"{config.jobs} at a time"
        ),
        f"agent        {asked.agent.name}" + (f" from {config.samples}" if config.samples else ""),
        f"runtime      {facts.runtime} (level {facts.level})",
    ]
    settled_tasks = [settled(task, config) for task in asked.tasks]
    for scope in limits_in_force(settled_tasks, facts.limits)[:SCOPES]:
        lines.append(f"limits       {parse.show_limits(scope.limits)}{whose(scope, len(asked.tasks))}")
        lines.append(f"walls        {parse.show_walls(scope.walls)}; a candidate's calls {scope.calls:g} s")
    lines += [f"template     {name} {digest}" for name, digest in facts.templates.items()]
    lines += [f"note         {note}" for note in facts.notes]
    lines += [f"broken       line {line.line}: {line.message[:200]}" for line in asked.plan.broken[:20]]
    return "\n".join(lines)
