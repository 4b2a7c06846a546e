"""Blobs that several pulls want: fetched once, in whatever orders, by another one where the first fails."""

from __future__ import annotations

import fcntl
import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from proofbox.kit.lock import take_lock
from proofbox.templates.fetched import DIRECTORY, Fetched, sweep

DIGESTS = [f"sha256:{number:064x}" for number in range(8)]


def writes(place: Path, digests: Sequence[str]) -> Path:
    """Fetches them: each holds its own name."""
    made = place / "made"
    made.mkdir(parents=True)
    for digest in digests:
        (made / digest.removeprefix("sha256:")).write_text(digest)
    return made


def test_each_is_fetched_once_in_whatever_orders_they_are_wanted(tmp_path: Path) -> None:
    """Sixteen pulls of the same blobs, each in an order of its own; all come to their end, and nothing is left."""
    asked: Counter[str] = Counter()
    everybody = threading.Barrier(16)

    def pull(number: int) -> list[str]:
        wanted = random.Random(number).sample(DIGESTS, len(DIGESTS))

        def fetch(digests: Sequence[str]) -> Path:
            asked.update(digests)
            return writes(tmp_path / f"{number}-{len(asked)}-{digests[0][-4:]}", digests)

        with Fetched(tmp_path, wanted) as blobs:
            everybody.wait()
            for digest in wanted:
                blobs.bring([digest], fetch)
            return [blobs.path(digest).read_text() for digest in DIGESTS]

    with ThreadPoolExecutor(16) as pulls:
        assert list(pulls.map(pull, range(16))) == [DIGESTS] * 16
    assert asked == Counter(DIGESTS)
    assert not list((tmp_path / DIRECTORY).iterdir())


def test_where_one_fails_another_fetches_and_keeps_what_was_whole(tmp_path: Path) -> None:
    """What the first one had fetched before it failed is not fetched again by the one that waited."""
    begun, wanted = threading.Event(), threading.Event()

    def failing(digests: Sequence[str]) -> Path:
        begun.set()
        wanted.wait()
        raise ConnectionError

    def first() -> None:
        with Fetched(tmp_path, DIGESTS) as blobs:
            blobs.bring(DIGESTS[:1], partial(writes, tmp_path / "first"))
            blobs.bring(DIGESTS, failing)

    asked: list[str] = []

    def fetch(digests: Sequence[str]) -> Path:
        asked.extend(digests)
        return writes(tmp_path / digests[0][-4:], digests)

    with ThreadPoolExecutor(1) as other:
        failed = other.submit(first)
        begun.wait()
        with Fetched(tmp_path, DIGESTS) as blobs:
            wanted.set()
            assert blobs.bring(DIGESTS, fetch) == len(DIGESTS) - 1
        assert isinstance(failed.exception(), ConnectionError)
    assert sorted(asked) == DIGESTS[1:]
    assert not list((tmp_path / DIRECTORY).iterdir())


def test_what_is_wanted_is_not_swept_and_what_was_left_is(tmp_path: Path) -> None:
    """A whole blob whose pull lives stays; one without a pull, as after ``kill -9``, goes with its lock files."""
    with Fetched(tmp_path, DIGESTS[:1]) as blobs:
        blobs.bring(DIGESTS[:1], partial(writes, tmp_path / "place"))
        for name in (DIGESTS[1][7:], f"{DIGESTS[1][7:]}.lock", f"{DIGESTS[2][7:]}.blob"):
            (tmp_path / DIRECTORY / name).touch()
        assert sweep(tmp_path) == 2
        assert blobs.path(DIGESTS[0]).read_text() == DIGESTS[0]
    assert not list((tmp_path / DIRECTORY).iterdir())
    assert sweep(tmp_path) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_who_is_cancelled_waits_no_longer(tmp_path: Path, anyio_backend: str) -> None:
    """For a blob that somebody else fetches for ever; nothing of it is left."""
    (tmp_path / DIRECTORY).mkdir(mode=0o700)
    lock = take_lock(tmp_path / DIRECTORY / f"{DIGESTS[0][7:]}.lock", fcntl.LOCK_EX)

    def pull() -> None:
        with Fetched(tmp_path, DIGESTS[:1]) as blobs:
            blobs.bring(DIGESTS[:1], partial(writes, tmp_path / "place"))

    with open(lock), anyio.move_on_after(0.2) as scope:
        await anyio.to_thread.run_sync(pull)
    assert scope.cancelled_caught
    assert not list((tmp_path / DIRECTORY).iterdir())
