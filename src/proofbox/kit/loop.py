"""Callbacks and background tasks that belong to no caller's task, on asyncio and on trio.

A sandbox may be opened in one task and closed in another, so what serves it cannot live in a task group of either. All
of this ends with the event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import anyio

Stop = Callable[[], None]


class Background:
    """A task of its own, started from a task or from a callback. What ``function`` raises goes to the loop's own
    report.
    """

    __slots__ = ("_cancelled", "_done", "_scope", "_task")

    def __init__(self, function: Callable[[], Awaitable[None]], name: str) -> None:
        self._done = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        loop = _asyncio_loop()
        self._task: object
        if loop is None:
            import trio

            self._task = trio.lowlevel.spawn_system_task(self._run, function, name=name)
        else:
            self._task = loop.create_task(self._run(function), name=name)

    def cancel(self) -> None:
        """Asks it to end. Idempotent, returns at once."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self) -> None:
        """Until it has ended. Safe to repeat and to cancel."""
        await self._done.wait()

    async def finish(self) -> None:
        """Until it has ended, cancelled or not; a cancellation goes on afterwards."""
        try:
            await self._done.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._done.wait()
            if anyio.current_effective_deadline() > -inf:
                raise  # asyncio's own, which comes once; that of a scope comes again at the next wait

    async def _run(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if not self._cancelled:
                    await function()
        finally:
            self._done.set()


def watch_readable(fd: int, callback: Callable[[], None]) -> Stop:
    """Calls ``callback`` whenever ``fd`` can be read, until the returned function is called. One watcher a
    descriptor.
    """
    loop = _asyncio_loop()
    if loop is None:
        return _watch_trio(fd, callback, anyio.wait_readable)
    loop.add_reader(fd, callback)

    def stop() -> None:
        if not loop.is_closed():
            loop.remove_reader(fd)

    return stop


def watch_writable(fd: int, callback: Callable[[], None]) -> Stop:
    """As ``watch_readable``, for writing."""
    loop = _asyncio_loop()
    if loop is None:
        return _watch_trio(fd, callback, anyio.wait_writable)
    loop.add_writer(fd, callback)

    def stop() -> None:
        if not loop.is_closed():
            loop.remove_writer(fd)

    return stop


def later(seconds: float, callback: Callable[[], None]) -> Stop:
    """Calls ``callback`` once after ``seconds``, unless the returned function is called before."""
    loop = _asyncio_loop()
    if loop is not None:
        return loop.call_later(seconds, callback).cancel

    async def sleep() -> None:
        await anyio.sleep(seconds)
        callback()

    return Background(sleep, "proofbox timer").cancel


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The running loop, also inside one of its callbacks; None means trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _watch_trio(fd: int, callback: Callable[[], None], ready: Callable[[Any], Awaitable[None]]) -> Stop:
    stopped = False

    async def serve() -> None:
        # A descriptor of its own: trio breaks down if one that it waits for is closed under it, as the caller may.
        mine = os.dup(fd)
        try:
            while True:
                await ready(mine)
                if stopped:  # a wait that was over already is not cancelled any more
                    return
                callback()
        finally:
            os.close(mine)

    watching = Background(serve, f"proofbox watch of descriptor {fd}")

    def stop() -> None:
        nonlocal stopped
        stopped = True
        watching.cancel()

    return stop
