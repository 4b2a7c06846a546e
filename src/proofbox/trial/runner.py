"""Many trials: at most so many at a time, in fair order, recorded as they end; cancelled, it leaves nothing behind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio

from proofbox.agent.contract import Agent, TurnAgent
from proofbox.model.run import Plan, StopRule
from proofbox.model.task import Task
from proofbox.model.trace import AttemptEnded, AttemptStarted, TrialEnded
from proofbox.model.turn import Turn
from proofbox.model.verdict import Ending
from proofbox.store.writer import Writer
from proofbox.trial.attempts import Retry
from proofbox.trial.history import History
from proofbox.trial.queue import Due, Queue
from proofbox.trial.record import record, record_turn
from proofbox.trial.rollout import Workplace
from proofbox.trial.stop import Alarm
from proofbox.trial.trial import Verifier, attempt


@dataclass(frozen=True, slots=True)
class Progress:
    """Something happened. Ends are told when they are on disk. ``counts`` are the trials that ended, by ending."""

    event: AttemptStarted | AttemptEnded | TrialEnded
    counts: Mapping[Ending, int]
    asked: int
    running: int


class Runner:
    """Runs the trials of a plan that the log does not have as judged yet. For one ``run``.

    Every attempt is recorded when it starts and when it ends; one that is cancelled has a start and no end, and its
    trial is as if it had not been run. ``on_event`` must be quick; what it raises ends the run.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: Mapping[str, Task],
        agent: Agent | TurnAgent,
        verifier: Verifier,
        writer: Writer,
        history: History,
        jobs: int = 4,
        retry: Retry | None = None,
        stop: StopRule | None = None,
        on_event: Callable[[Progress], object] | None = None,
        place: Workplace | None = None,
    ) -> None:
        self._tasks = tasks
        self._agent = agent
        self._verifier = verifier
        self._writer = writer
        self._jobs = jobs
        self._retry = retry or Retry()
        self._alarm = Alarm(stop or StopRule())
        self._place = place
        self._queue = Queue(history.left(plan))
        self._asked = plan.asked
        self._counts = history.counts()
        self._isolations = set(history.isolations)
        self._running = 0
        self._on_event = on_event
        self._send, self._progress = anyio.create_memory_object_stream[Progress](math.inf)
        self._cpu = 0.0
        self.stopped: str | None = None
        """Why it was stopped early, if it was."""
        self.attempts = 0

    @property
    def overhead(self) -> float:
        """CPU seconds an attempt, outside of agent and verifier: scheduling and recording."""
        return (self._cpu + self._writer.cpu) / self.attempts if self.attempts else 0.0

    async def run(self) -> None:
        """Returns when every trial has ended and is on disk, or the stop rule says so (``stopped``).

        Cancelled or failed, it has ended all attempts, booked those that were finished, and no other.
        """
        async with anyio.create_task_group() as announcing:
            announcing.start_soon(self._announce)
            with self._send:
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as workers:
                        for _ in range(self._jobs):
                            workers.start_soon(self._work, scope)
                await self._writer.flush()

    async def _work(self, scope: anyio.CancelScope) -> None:
        while (due := await self._queue.next()) is not None:
            self._running += 1
            pause = None
            try:
                pause = await self._attempt(due)
            finally:
                self._running -= 1
                self._queue.done(due, pause)
            if self.stopped:
                scope.cancel()

    async def _attempt(self, due: Due) -> float | None:
        """One attempt, recorded. Returns the pause before the next one, or None if the trial has ended."""
        began, start = time.monotonic(), time.thread_time()
        started = AttemptStarted(trial=due.trial, attempt=due.number, at=time.time())
        await self._writer.append(started, durable=False)
        self._tell(started)
        prepared = time.thread_time()

        async def tell(turn: Turn) -> None:
            event, blobs = record_turn(due, turn)
            await self._writer.append(event, blobs=blobs)

        task, index = self._tasks[due.trial.task], due.trial.index
        done = await attempt(task, index, self._agent, self._verifier, self._place, tell)
        ended = time.thread_time()
        recorded = record(due, done, queued=began - due.ready)
        pause = None if done.failure is None else self._retry.pause(done.failure, due.tried)
        with anyio.CancelScope(shield=True):  # what is finished is kept; the writer always gets on or fails
            found = [each for each in recorded.found if each.digest not in self._isolations]
            self._isolations.update(each.digest for each in found)
            if pause is not None:
                await self._writer.append(
                    *found, recorded.event, blobs=recorded.blobs, done=lambda: self._tell(recorded.event)
                )
            else:
                final = recorded.trial_ended()
                await self._writer.append(
                    *found,
                    recorded.event,
                    final,
                    blobs=recorded.blobs,
                    done=lambda: self._booked(recorded.event, final),
                )
                self.stopped = self.stopped or self._alarm.count(final.ending, recorded.event.reason)
        self.attempts += 1
        self._cpu += prepared - start + time.thread_time() - ended
        return pause

    def _booked(self, event: AttemptEnded, final: TrialEnded) -> None:
        self._counts[final.ending] += 1
        self._tell(event)
        self._tell(final)

    def _tell(self, event: AttemptStarted | AttemptEnded | TrialEnded) -> None:
        if self._on_event is not None:
            try:
                self._send.send_nowait(Progress(event, dict(self._counts), self._asked, self._running))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # the run was cancelled: nobody listens any more

    async def _announce(self) -> None:
        with self._progress:
            async for progress in self._progress:
                if self._on_event is not None:
                    self._on_event(progress)
