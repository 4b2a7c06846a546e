"""Whose turn it is: fair order over the tasks, and attempts that wait for their next try without holding a slot."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import anyio

from proofbox.model.ids import TrialId


@dataclass(frozen=True, slots=True)
class Turn:
    """Attempt ``number`` of a trial, the ``tried``-th in this process; ready since ``ready`` (monotonic seconds)."""

    trial: TrialId
    number: int
    tried: int
    ready: float


class Turns:
    """Hands out turns to workers until every trial has had its last one. Only for tasks of one event loop."""

    def __init__(self, turns: Iterable[tuple[TrialId, int]]) -> None:
        now = time.monotonic()
        self._fresh = deque(Turn(trial, number, 1, now) for trial, number in turns)
        self._later: list[tuple[float, int, Turn]] = []
        self._order = 0
        self._out = 0
        self._changed = anyio.Event()

    async def next(self) -> Turn | None:
        """The next turn, as soon as there is one; None once nothing is waiting and nothing is out.

        Retries that are due come first: their trials have waited longest. Each turn must come back by ``done``.
        """
        while (turn := self._take()) is None:
            if not self._out and not self._later:
                return None
            pause = self._later[0][0] - time.monotonic() if self._later else float("inf")
            with anyio.move_on_after(pause):
                await self._changed.wait()
        return turn

    def _take(self) -> Turn | None:
        if self._later and self._later[0][0] <= time.monotonic():
            turn = heapq.heappop(self._later)[2]
        elif self._fresh:
            turn = self._fresh.popleft()
        else:
            return None
        self._out += 1
        return turn

    def done(self, turn: Turn, pause: float | None) -> None:
        """The turn is over; with a ``pause`` in seconds the trial gets another one after it."""
        self._out -= 1
        if pause is not None:
            ready = time.monotonic() + pause
            self._order += 1
            again = Turn(turn.trial, turn.number + 1, turn.tried + 1, ready)
            heapq.heappush(self._later, (ready, self._order, again))
        self._changed.set()
        self._changed = anyio.Event()
