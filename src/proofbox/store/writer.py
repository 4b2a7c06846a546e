"""One task writes a run's log, for many trials at once: events that arrive while it writes share the next fsync."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from proofbox.errors import StoreFailed
from proofbox.model.trace import Event
from proofbox.store.blobs import put_blob
from proofbox.store.log import LogFile

BACKLOG = 1024
"""Batches that may wait for the disk before the ones that make them have to."""


@dataclass(frozen=True, slots=True)
class _Batch:
    events: Sequence[Event]
    blobs: Sequence[bytes]
    durable: bool
    done: Callable[[], None] | None


class Writer:
    """Appends to the log of a run. Order is the order of the calls. Made by ``open_writer``."""

    def __init__(self, log: LogFile, blobs: Path) -> None:
        self._log = log
        self._blobs = blobs
        self._send: MemoryObjectSendStream[_Batch]
        self._receive: MemoryObjectReceiveStream[_Batch]
        self._send, self._receive = anyio.create_memory_object_stream(BACKLOG)
        self.failure: StoreFailed | None = None
        self.wall = self.cpu = 0.0
        """Seconds that writing took, and how many of them the processor worked for it."""

    @property
    def dropped(self) -> int:
        """Bytes of a torn last line that were cut off when it was opened."""
        return self._log.dropped

    async def append(
        self,
        *events: Event,
        blobs: Sequence[bytes] = (),
        durable: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Takes events over for writing, after the blobs that they name; waits only where the backlog is full.

        ``done`` is called in the event loop when they are on the disk; it must not raise. Without ``durable`` they
        survive the end of this process, but maybe not a power cut. Raises ``StoreFailed`` once the log is broken. When
        it is cancelled, nothing of it was written nor will be.
        """
        batch = _Batch(events, blobs, durable, done)
        try:
            try:
                self._send.send_nowait(batch)
            except anyio.WouldBlock:
                await self._send.send(batch)
        except anyio.BrokenResourceError:
            raise self.failure or StoreFailed("the log was closed") from None

    async def flush(self) -> None:
        """Returns when all that was appended before is on disk. If it never will be, ``open_writer`` cancels it."""
        written = anyio.Event()
        await self.append(done=written.set)
        await written.wait()

    async def _write_all(self, failed: Callable[[], object]) -> None:
        """The task: until ``close``, or the log is broken. Not to be cancelled: what was taken over is written."""
        with anyio.CancelScope(shield=True), self._receive:
            async for first in self._receive:
                batches = [first]
                while self._receive.statistics().current_buffer_used:
                    batches.append(self._receive.receive_nowait())
                try:
                    await anyio.to_thread.run_sync(self._write, batches)
                except StoreFailed as error:
                    self.failure = error
                    failed()
                    return
                for batch in batches:
                    if batch.done is not None:
                        batch.done()

    def _write(self, batches: Sequence[_Batch]) -> None:
        wall, cpu = time.monotonic(), time.thread_time()
        for batch in batches:
            for blob in batch.blobs:
                put_blob(self._blobs, blob)
        events = [event for batch in batches for event in batch.events]
        self._log.append(events, durable=any(batch.durable for batch in batches))
        self.wall += time.monotonic() - wall
        self.cpu += time.thread_time() - cpu

    def close(self) -> None:
        """No more comes; what was appended is still written."""
        self._send.close()


@asynccontextmanager
async def open_writer(
    log: Path, blobs: Path, see: Callable[[Event], object] = lambda event: None
) -> AsyncIterator[Writer]:
    """Locks a run's log and shows ``see`` what is in it already. On leaving, all that was appended is written.

    Raises ``StoreFailed`` where another one writes, or the log is damaged. When writing fails later, the body is
    cancelled and ``StoreFailed`` is raised in its place.
    """
    file = await anyio.to_thread.run_sync(LogFile, log, see)
    try:
        writer = Writer(file, blobs)
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as body:
                group.start_soon(writer._write_all, body.cancel)
                try:
                    yield writer
                except Exception:
                    if writer.failure is None:
                        raise
                finally:
                    writer.close()
        if writer.failure is not None:
            raise writer.failure
    finally:
        file.close()
