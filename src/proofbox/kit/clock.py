"""A clock for work that may not take longer than so long, and that stops while the work waits for us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from time import perf_counter
from typing import Final

import anyio

_running: Final[ContextVar[Clock | None]] = ContextVar("proofbox_clock", default=None)


class Clock:
    """``seconds`` for what runs inside ``run``, which is cancelled then; once. ``expired`` says whether it was.

    ``used`` are seconds so far, those left out in which ``paused`` was held by any of its tasks. One inside of another
    stands together with it.
    """

    def __init__(self, seconds: float = inf) -> None:
        self._left = seconds
        self._since: float | None = None
        self._holds = 0
        self._outer: Clock | None = None
        self._scope = anyio.CancelScope()
        self.used = 0.0

    @property
    def expired(self) -> bool:
        return self._scope.cancelled_caught

    @contextmanager
    def run(self) -> Iterator[None]:
        """The clock of everything that is done inside, in tasks that are started there too."""
        self._outer = _running.get()
        token = _running.set(self)
        try:
            with self._scope:
                self._go()
                yield
        finally:
            self._halt()
            _running.reset(token)

    def hold(self) -> None:
        """It stands until as many ``release``."""
        self._holds += 1
        if self._holds == 1:
            self._halt()
        if self._outer is not None:
            self._outer.hold()

    def release(self) -> None:
        """See ``hold``."""
        self._holds -= 1
        if not self._holds:
            self._go()
        if self._outer is not None:
            self._outer.release()

    def _go(self) -> None:
        self._since = perf_counter()
        self._scope.deadline = anyio.current_time() + self._left

    def _halt(self) -> None:
        if self._since is not None:
            passed = perf_counter() - self._since
            self.used, self._left, self._since = self.used + passed, self._left - passed, None
            self._scope.deadline = inf


@contextmanager
def paused() -> Iterator[None]:
    """The clock that runs here, if one does, stands meanwhile: the infrastructure is at work and not who is timed."""
    clock = _running.get()
    if clock is None:
        yield
        return
    clock.hold()
    try:
        yield
    finally:
        clock.release()


@contextmanager
def untimed() -> Iterator[None]:
    """For a task that somebody started whose clock runs, and which is not at work for them: that clock is not its."""
    token = _running.set(None)
    try:
        yield
    finally:
        _running.reset(token)
