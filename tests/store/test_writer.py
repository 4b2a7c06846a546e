"""The writer: many at once, acknowledged when durable, whole or not at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from proofbox.errors import StoreFailed
from proofbox.model.ids import digest
from proofbox.model.trace import Event, RunOpened
from proofbox.store.blobs import get_blob, put_blob
from proofbox.store.log import LogReader
from proofbox.store.writer import open_writer


async def test_an_event_is_acknowledged_only_when_it_is_on_disk(tmp_path: Path) -> None:
    """At the moment of each acknowledgement the event and its blob can be read; all 200 get theirs, in order."""
    log, blobs = tmp_path / "events.jsonl", tmp_path / "blobs"
    acknowledged: list[float] = []

    def done(at: float, blob: bytes) -> None:
        assert at in [event.at for event in LogReader(log)]
        assert get_blob(blobs, digest(blob)) == blob
        acknowledged.append(at)

    async with open_writer(log, blobs) as writer, anyio.create_task_group() as group:

        async def book(i: int) -> None:
            blob = b"x" * 9000 if i % 2 else b"y" * 9000
            await writer.append(RunOpened(at=float(i)), blobs=[blob], done=lambda: done(float(i), blob))

        for i in range(200):
            group.start_soon(book, i)
    assert sorted(acknowledged) == [float(i) for i in range(200)]
    assert [event.at for event in LogReader(log)] == acknowledged
    assert len([p for p in blobs.rglob("*") if p.is_file()]) == 2


async def test_events_that_wait_together_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred trials that end at once cost a few syncs of the disk, not a hundred."""
    syncs: list[int] = []
    fdatasync = os.fdatasync

    def counted(fd: int) -> None:
        syncs.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", counted)
    async with open_writer(tmp_path / "log", tmp_path / "blobs") as writer:
        for i in range(100):
            await writer.append(RunOpened(at=float(i)))
        await writer.flush()
        assert len(list(LogReader(tmp_path / "log"))) == 100
    assert 1 <= len(syncs) <= 10


async def test_cancellation_writes_what_was_taken_over(tmp_path: Path) -> None:
    """What was appended before the cancellation is on disk afterwards, and the lock is given back."""
    with anyio.CancelScope() as scope:
        async with open_writer(tmp_path / "log", tmp_path / "blobs") as writer:
            for i in range(50):
                await writer.append(RunOpened(at=float(i)))
            scope.cancel()
            await anyio.sleep_forever()
    assert len(list(LogReader(tmp_path / "log"))) == 50
    seen: list[Event] = []
    async with open_writer(tmp_path / "log", tmp_path / "blobs", seen.append):
        assert len(seen) == 50


async def test_a_second_writer_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    """The error is raised on opening, and leaves the first writer undisturbed."""
    async with open_writer(tmp_path / "log", tmp_path / "blobs") as writer:
        with pytest.raises(StoreFailed, match="another process"):
            async with open_writer(tmp_path / "log", tmp_path / "blobs"):
                pytest.fail("two writers at once")
        await writer.append(RunOpened(at=1.0))
    assert len(list(LogReader(tmp_path / "log"))) == 1


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process can grow beyond 3,000 bytes. Not a fixture: pytest may be writing its own log to one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_stops_the_body_at_once(tmp_path: Path) -> None:
    """A body that waits for something else is cancelled, and StoreFailed comes out; what was acknowledged is whole."""
    acknowledged: list[float] = []

    async def fill() -> None:
        async with open_writer(tmp_path / "log", tmp_path / "blobs") as writer:
            for i in range(100):
                await writer.append(RunOpened(at=float(i)), done=partial(acknowledged.append, float(i)))
                await writer.flush()
            await anyio.sleep_forever()

    with small_files(), anyio.fail_after(10), pytest.raises(StoreFailed, match="make room"):
        await fill()
    assert acknowledged
    assert [event.at for event in LogReader(tmp_path / "log")] == acknowledged


async def test_a_blob_that_cannot_be_kept_keeps_its_event_out_of_the_log(tmp_path: Path) -> None:
    """No event names bytes that are not there."""

    async def fill() -> None:
        async with open_writer(tmp_path / "log", tmp_path / "blobs") as writer:
            await writer.append(RunOpened(at=1.0))
            await writer.flush()
            await writer.append(RunOpened(at=2.0), blobs=[b"z" * 9000])
            await anyio.sleep_forever()

    with small_files(), anyio.fail_after(10), pytest.raises(StoreFailed, match="could not be kept"):
        await fill()
    assert [event.at for event in LogReader(tmp_path / "log")] == [1.0]
    assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


def test_a_damaged_blob_is_not_handed_out(tmp_path: Path) -> None:
    """Bytes that do not have the digest they stand under are an error."""
    name = put_blob(tmp_path, b"the output")
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.write_bytes(b"the 0utput")
    with pytest.raises(StoreFailed, match="damaged"):
        get_blob(tmp_path, name)
    with pytest.raises(StoreFailed, match="not a digest"):
        get_blob(tmp_path, "sha256:../../../etc/passwd")
