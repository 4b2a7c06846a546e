"""CPU time of one command: of its whole tree, ended processes included, counted from outside.

The kernel counts the group of the whole sandbox, and forgets nobody. From that goes what others in the sandbox used
meanwhile, as /proc shows it: other commands, what they left in the background, and the guest. So nothing that the
command starts can hide from its limit. Who runs beside it and hides the time of its children from /proc (by ignoring
SIGCHLD) is counted here too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter, time
from typing import Final

import anyio

from proofbox.errors import SandboxLost
from proofbox.host import threads
from proofbox.kit.loop import Background
from proofbox.model.outcome import HitLimit
from proofbox.sandbox.clocks import LEAST
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.observe import supervisor_of

MOST: Final = 1024
"""Threads of a sandbox that are looked at; what more there are counts as the command's."""


class CpuTime:
    """Counts from its making on, which comes before the command's start. Raises ``SandboxLost`` if nobody counts."""

    def __init__(self, life: Life, limit: float) -> None:
        self.limit = limit
        self.hit: HitLimit | None = None
        """Set when it fired."""
        self._life = life
        self._begun = perf_counter()
        self._pid: Callable[[], int | None] = lambda: None
        self._root: int | None = None
        self._task: Background | None = None
        self._whole, self._others = self._read()

    def begin(self, pid: Callable[[], int | None], end: Callable[[], None]) -> None:
        """From now on ``end`` is called once the limit is reached. ``pid``: the command's number inside, once known."""
        self._pid = pid
        self._task = Background(lambda: self._watch(end), f"proofbox CPU of a command in {self._life.spec.id}")

    def stop(self) -> None:
        """It has ended. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    def proves(self, said: float) -> float | None:
        """CPU seconds of a command that has ended, where they reach the limit; ``said`` is its guest's word.

        The lower of both counts: the guest cannot make it more than the kernel counted for the whole sandbox.
        """
        try:
            used = min(said, self._read()[0] - self._whole)
        except SandboxLost:
            return None
        return used if used >= self.limit else None

    async def _watch(self, end: Callable[[], None]) -> None:
        everybody = float(len(os.sched_getaffinity(0)))
        share = min(self._life.spec.limits.cpus or everybody, everybody)
        while True:
            try:
                used = self._used()
            except SandboxLost as error:
                self._life.lose(error)
                return
            if used >= self.limit:
                elapsed = perf_counter() - self._begun
                self.hit = HitLimit(
                    kind="command_cpu_time", limit=self.limit, used=used, elapsed=elapsed, cause="task", at=time()
                )
                end()
                return
            await anyio.sleep(max(LEAST, (self.limit - used) / share))

    def _used(self) -> float:
        whole, others = self._read()
        # Before it is known which processes are the command's, all of them are.
        return whole - self._whole - (max(0.0, others - self._others) if self._root is not None else 0.0)

    def _read(self) -> tuple[float, float]:
        """CPU seconds of the whole sandbox, and of all in it that is not the command's."""
        observed = self._life.observe()
        pids, usage = observed or ((), None)
        if usage is None or usage.cpu_user is None or usage.cpu_system is None:
            where = f"sandbox {self._life.spec.id}"
            raise SandboxLost(f"{where}: CPU time, on which a command has a limit, is not counted any more", "host")
        everything, _ = threads.processes(pids, MOST)
        if self._root is None and (pid := self._pid()) is not None:
            self._root = supervisor_of(everything, pid, perf_counter() - self._begun)
        own = {each.pid for each in threads.below(everything, self._root)} if self._root is not None else set()
        return usage.cpu_user + usage.cpu_system, sum(each.cpu for each in everything if each.pid not in own)
