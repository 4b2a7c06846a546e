"""All processes of a sandbox stopped for a while, and set going again whatever happens in between.

A version 2 control group is frozen by the kernel. Version 1's freezer would hold processes that are killed meanwhile,
so that the end of this process would leave them behind; there, and where there are no groups, each gets SIGSTOP, and
SIGCONT afterwards unless it was stopped before. A killed process is gone at once in both ways.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Final

import anyio

from proofbox.errors import Busy
from proofbox.host import threads
from proofbox.host.cgroup import Plan

PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.001
_SETTLED: Final = 20
"""Looks in which a process in uninterruptible sleep, the parent of one that is stopped, has to be just there."""


@asynccontextmanager
async def paused(plan: Plan, find: Callable[[], Sequence[int]], guest: Callable[[], int]) -> AsyncIterator[None]:
    """While this is open none of them runs. ``find`` gives the sandbox's processes, ``guest`` its first one's number.

    Raises ``Busy`` if they do not stop in time; then, when cancelled and in the end they run on.
    """
    frozen = f"{plan.directories[0]}/cgroup.freeze" if plan.version == 2 and plan.directories else ""
    if frozen and os.access(frozen, os.W_OK):
        with _frozen(frozen):
            await _until(lambda: "frozen 1" in _text(f"{plan.directories[0]}/cgroup.events").splitlines())
            yield
        return
    stopped = _Stopped(find)
    try:
        # The guest first: it takes a supervisor that was stopped by somebody else for broken.
        stopped.stop(guest())
        await _until(stopped.all_stopped)
        yield
    finally:
        stopped.resume()


async def _until(done: Callable[[], bool]) -> None:
    late = monotonic() + PATIENCE_S
    while not done():
        if monotonic() > late:
            raise Busy(f"the sandbox's processes did not stop within {PATIENCE_S:g} s; nothing was copied, they run on")
        await anyio.sleep(_PAUSE_S)


@contextmanager
def _frozen(path: str) -> Iterator[None]:
    _write(path, "1")
    try:
        yield
    finally:
        if os.path.exists(path):  # else it was destroyed meanwhile: being frozen stops nobody from being killed
            _write(path, "0")


class _Stopped:
    """Those that were stopped here, in their order, each with a descriptor: its number may be another's one day."""

    def __init__(self, find: Callable[[], Sequence[int]]) -> None:
        self._find = find
        self._ours: dict[int, int] = {}
        self._before: set[int] = set()
        self._sleeping: dict[int, int] = {}

    def stop(self, pid: int) -> None:
        """Unless it is stopped already, or gone."""
        try:
            held = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if pid not in self._find():
                return
            if _at_rest(pid) == "stopped":
                self._before.add(pid)
                return
            signal.pidfd_send_signal(held, signal.SIGSTOP)
            self._ours[pid], held = held, -1
        except ProcessLookupError:
            return
        finally:
            if held >= 0:
                os.close(held)

    def all_stopped(self) -> bool:
        """Stops those that have come, and looks whether there were none and all the others rest."""
        found = self._find()
        new = [pid for pid in found if pid not in self._ours and pid not in self._before and _at_rest(pid) != "gone"]
        for pid in new:
            self.stop(pid)
        return not new and all(self._rests(pid) for pid in found)

    def resume(self) -> None:
        """Those that were stopped here run on, the guest last."""
        for held in reversed(self._ours.values()):
            try:
                signal.pidfd_send_signal(held, signal.SIGCONT)
            except ProcessLookupError:
                continue
            finally:
                os.close(held)
        self._ours.clear()

    def _rests(self, pid: int) -> bool:
        state = _at_rest(pid)
        if state != "sleeping":
            return state != "running"
        # The parent of a vfork sleeps until its child, which is stopped, goes on.
        self._sleeping[pid] = self._sleeping.get(pid, 0) + 1
        return self._sleeping[pid] > _SETTLED and any(child in self._ours for child in threads.descendants(pid)[1:])


def _at_rest(pid: int) -> str:
    """``stopped``, ``gone``, ``sleeping`` uninterruptibly, or ``running``, which it might."""
    found, _ = threads.processes((pid,), 1 << 20)
    states = {thread.state for process in found for thread in process.threads} - {"Z", "X"}
    if not states:
        return "gone"
    if states <= {"T", "t"}:
        return "stopped"
    return "sleeping" if states <= {"T", "t", "D"} else "running"


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
