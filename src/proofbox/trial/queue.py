"""Which attempt is next: fair order over the tasks; trials that wait for their next one hold no slot."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import anyio

from proofbox.model.ids import TrialId


@dataclass(frozen=True, slots=True)
class Due:
    """Attempt ``number`` of a trial, the ``tried``-th in this process; ready since ``ready`` (monotonic seconds)."""

    trial: TrialId
    number: int
    tried: int
    ready: float


class Queue:
    """Hands out attempts to workers until every trial has had its last one. Only for tasks of one event loop."""

    def __init__(self, attempts: Iterable[tuple[TrialId, int]]) -> None:
        now = time.monotonic()
        self._fresh = deque(Due(trial, number, 1, now) for trial, number in attempts)
        self._later: list[tuple[float, int, Due]] = []
        self._order = 0
        self._out = 0
        self._changed = anyio.Event()

    async def next(self) -> Due | None:
        """The next attempt, as soon as there is one; None once nothing is waiting and nothing is out.

        Retries that are due come first: their trials have waited longest. Each must come back by ``done``.
        """
        while (due := self._take()) is None:
            if not self._out and not self._later:
                return None
            pause = self._later[0][0] - time.monotonic() if self._later else float("inf")
            with anyio.move_on_after(pause):
                await self._changed.wait()
        return due

    def _take(self) -> Due | None:
        if self._later and self._later[0][0] <= time.monotonic():
            due = heapq.heappop(self._later)[2]
        elif self._fresh:
            due = self._fresh.popleft()
        else:
            return None
        self._out += 1
        return due

    def done(self, due: Due, pause: float | None) -> None:
        """This attempt is over; with a ``pause`` in seconds the trial gets another one then."""
        self._out -= 1
        if pause is not None:
            ready = time.monotonic() + pause
            self._order += 1
            again = Due(due.trial, due.number + 1, due.tried + 1, ready)
            heapq.heappush(self._later, (ready, self._order, again))
        self._changed.set()
        self._changed = anyio.Event()
