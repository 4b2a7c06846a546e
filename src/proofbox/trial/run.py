"""A whole run, from what was asked for to the report: what the command line and the bindings call."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import metadata

import anyio
import anyio.to_thread
import msgspec

from proofbox.agent.contract import Agent, TurnAgent
from proofbox.errors import BrokenTask, InvalidInput
from proofbox.model.ids import run_id
from proofbox.model.run import HostFacts, Plan, RunConfig, RunRecord, limits_in_force, task_set_digest
from proofbox.model.task import Task
from proofbox.model.trace import Closing, RunClosed, RunOpened, recordable
from proofbox.store.report import Report, read_report
from proofbox.store.runs import RunDir, Store
from proofbox.store.writer import Writer
from proofbox.trial.attempts import Retry
from proofbox.trial.history import History
from proofbox.trial.rollout import Workplace
from proofbox.trial.runner import Progress, Runner
from proofbox.trial.trial import Verifier, root_of


async def run_tasks(
    config: RunConfig,
    tasks: Sequence[Task],
    agent: Agent | TurnAgent,
    verifier: Verifier,
    host: HostFacts,
    store: Store,
    *,
    plan: Plan | None = None,
    samples: str | None = None,
    resume: str | None = None,
    place: Workplace | None = None,
    on_event: Callable[[Progress], object] | None = None,
    on_open: Callable[[RunDir], object] | None = None,
) -> Report:
    """Runs every trial that was asked for and reports over all of them.

    ``plan`` is the denominator where it is not ``config.n`` trials of each task; ``samples`` the digest of the file
    behind the agent. ``resume`` names a run to go on with: judged trials are not repeated, all others are, and a
    difference in what was asked for is ``InvalidInput``. ``place`` is where agents that act in turns get sandboxes.
    ``on_open`` learns the run's directory before the first trial.

    Cancelled, it leaves a run that can be resumed and no attempt half-booked. Raises ``StoreFailed`` if the run cannot
    be recorded; what was announced as ended is on disk.
    """
    by_id = {task.id: _pinned(task, host, config) for task in tasks}
    record = _record(config, tasks, plan or Plan.uniform(tasks, config.n), samples, host, by_id.values())
    run = await anyio.to_thread.run_sync(_directory, store, record, resume)
    if on_open is not None:
        on_open(run)
    history = History()
    async with run.open_writer(history.see) as writer:
        retry = Retry(attempts=config.attempts)
        runner = Runner(
            record.plan, by_id, agent, verifier, writer, history, config.jobs, retry, config.stop, on_event, place
        )
        async with _recorded(runner, writer):
            await runner.run()
    return await anyio.to_thread.run_sync(read_report, run)


def _record(
    config: RunConfig, tasks: Sequence[Task], plan: Plan, samples: str | None, host: HostFacts, pinned: Iterable[Task]
) -> RunRecord:
    known = {task.id for task in tasks}
    if unknown := [task for task in plan.trials if task not in known]:
        names = ", ".join(unknown[:5])
        raise BrokenTask(f"trials were asked for of {len(unknown)} tasks that are not in the set: {names}")
    return RunRecord(
        id=run_id(datetime.now(UTC), os.urandom(3)),
        at=time.time(),
        config=config,
        plan=plan,
        task_set=task_set_digest(tasks),
        tasks=len(tasks),
        samples=samples,
        host=msgspec.structs.replace(host, versions={**versions(), **host.versions}),
        limits=limits_in_force(pinned, host.limits),
    )


@asynccontextmanager
async def _recorded(runner: Runner, writer: Writer) -> AsyncIterator[None]:
    """The record that a process began to write, and, however the body ends, how."""
    await writer.append(RunOpened(at=time.time(), dropped=writer.dropped, versions=versions()))
    closing: Closing = "cancelled"
    why = ""
    try:
        yield
        closing, why = ("stopped", runner.stopped) if runner.stopped else ("complete", "")
    except Exception as error:
        root = root_of(error)
        closing, why = "failed", recordable(f"{type(root).__name__}: {root}")
        raise
    finally:
        with anyio.CancelScope(shield=True):
            end = RunClosed(
                at=time.time(),
                closing=closing,
                why=why,
                attempts=runner.attempts,
                overhead=runner.overhead,
                disk=writer.wall,
            )
            await writer.append(end)


def _directory(store: Store, record: RunRecord, resume: str | None) -> RunDir:
    if resume is None:
        return store.create(record)
    run = store.open(resume)
    if differences := run.record().differences(record):
        raise InvalidInput(f"run {run.id} cannot be resumed with this: " + "; ".join(differences))
    return run


def _pinned(task: Task, host: HostFacts, config: RunConfig) -> Task:
    """The task with its template named by the recorded digest, as a name may change its meaning meanwhile."""
    return msgspec.structs.replace(settled(task, config), template=host.templates.get(task.template, task.template))


def settled(task: Task, config: RunConfig) -> Task:
    """The task with what the run says where it is silent, and sandboxes that live long enough for all that happens in
    them. Raises ``BrokenTask`` where the two make no sense together.
    """
    walls = task.walls.over(config.walls)
    wall = task.limits.wall or config.limits.wall or msgspec.structs.replace(task, walls=walls).lifetime()
    return msgspec.structs.replace(task, walls=walls, limits=msgspec.structs.replace(task.limits, wall=wall))


def versions() -> dict[str, str]:
    """Of what may change a result from outside: this package, Python, the kernel, the machine."""
    try:
        own = metadata.version("proofbox")
    except metadata.PackageNotFoundError:
        own = "from source, not installed"
    return {
        "proofbox": own,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
