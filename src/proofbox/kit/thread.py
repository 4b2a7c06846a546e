"""One event loop in a background thread, for code that has none; and a word from the loop to its worker threads."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
import sniffio
from anyio.from_thread import BlockingPortal, check_cancelled

from proofbox.errors import InvalidInput

T = TypeVar("T")


class Loop:
    """The background thread of this process.

    Nothing of it waits for the thread when it is let go of: a fork lets go of it, and has no such thread. (So it is not
    ``anyio.from_thread.start_blocking_portal``, whose generator does.)
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        begun: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=_serve, args=(begun,), name="proofbox sync", daemon=True)
        self._thread.start()
        self._portal = begun.result()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
        """Runs it on the loop and waits. Interrupted, it is cancelled, and has ended when the interruption goes on."""
        _refuse_inside_a_loop()
        if self.pid != os.getpid():
            raise InvalidInput(
                f"this belongs to process {self.pid} and was reached from its fork {os.getpid()}: "
                "open a sandbox of its own in the fork"
            )
        ended = threading.Event()

        async def body() -> T:
            try:
                return await function(*args, **named)
            finally:
                ended.set()

        future = self._portal.start_task_soon(body)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait()
            raise

    def close(self) -> None:
        """Ends the thread; what it still serves is cancelled."""
        if self.pid == os.getpid():
            self._portal.call(self._portal.stop, True)
            self._thread.join()


def _serve(begun: Future[BlockingPortal]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            begun.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve)
    except BaseException as error:
        if begun.done():
            raise
        begun.set_exception(error)


class _Process:
    """The loop of this process, made at the first call. A fork starts without one."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._making = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def loop(self) -> Loop:
        """Safe in any thread."""
        _refuse_inside_a_loop()
        with self._making:
            if self._loop is None:
                self._loop = Loop()
                atexit.register(self._loop.close)
            return self._loop

    def _forked(self) -> None:
        # The thread is not in the fork, and another thread of the parent may have held the lock for ever.
        self._loop = None
        self._making = threading.Lock()


_this_process: Final = _Process()


def loop_of_process() -> Loop:
    """The one of this process. Raises ``InvalidInput`` inside a running event loop."""
    return _this_process.loop()


def give_up_if_cancelled() -> None:
    """Raises where this is a worker thread of an event loop, and the task that waits for it has been cancelled."""
    with suppress(RuntimeError):  # it is no such thread
        check_cancelled()


def _refuse_inside_a_loop() -> None:
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return
    raise InvalidInput(
        f"proofbox.sync was called inside a running {library} event loop, which it would block: "
        "use `async with proofbox.open_sandbox(...)` and `await` there"
    )
