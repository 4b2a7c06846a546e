"""All processes of a sandbox stopped for a while: by a version 2 group where there is one, else one by one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from proofbox.host import threads
from proofbox.host.cgroup import Plan
from proofbox.host.pause import paused

pytestmark = pytest.mark.anyio

FAMILY = """
import os, time
if os.fork() == 0:
    while True: time.sleep(0.001)
print(os.getpid(), flush=True)
os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do /bin/true; done"], {})
while True: pass
"""


@contextmanager
def started(group: Path | None = None) -> Iterator[int]:
    """One process that computes, one that sleeps and wakes, one that starts others all the time; the first's number."""
    join = "exec" if group is None else f"echo 0 > {group}/cgroup.procs; exec"
    words = ["sh", "-c", f'{join} "$@"', "sh", sys.executable, "-c", FAMILY]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None
    running.stdout.readline()
    try:
        yield running.pid
    finally:
        os.killpg(running.pid, 9)
        running.stdout.close()
        running.wait()


@pytest.fixture
def family() -> Iterator[int]:
    """The first process of such a family, in no group of its own."""
    with started() as first:
        yield first


@pytest.fixture
def group() -> Iterator[Path]:
    """A version 2 group of this test's own, which can be frozen."""
    for root in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        path = Path(root) / f"pause-{secrets.token_hex(4)}"
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / "cgroup.freeze").exists():
            yield path
            for _ in range(1000):
                if not (path / "cgroup.procs").read_text():
                    break
                time.sleep(0.01)
            path.rmdir()
            return
        path.rmdir()
    pytest.skip("no version 2 control group can be made here")


def work(pids: list[int]) -> int:
    """Nanoseconds that they have run, as far as they are there."""
    found, _ = threads.processes(pids, 1000)
    return sum(thread.ran for process in found for thread in process.threads)


async def goes_on(root: int) -> bool:
    """Whether they get on, within a while."""
    before = work([root])
    for _ in range(2000):
        if work([root]) != before:
            return True
        await anyio.sleep(0.01)
    return False


async def rests(root: int) -> bool:
    """Whether none of them gets on in a time in which a running one would."""
    family = threads.descendants(root)
    before = work(family)
    await anyio.sleep(0.1)
    return work(family) == before and threads.descendants(root) == family


async def test_one_by_one_until_none_runs_and_none_is_new(family: int) -> None:
    """Nothing runs inside the block, not even what was started while they were being stopped; then all run on."""
    async with paused(Plan(), lambda: threads.descendants(family), lambda: family):
        assert await rests(family)
    assert await goes_on(family)
    assert len(threads.descendants(family)) >= 3


async def test_an_error_or_a_cancellation_lets_them_go_on(family: int) -> None:
    """They run on whatever happens in the block."""
    with pytest.raises(ZeroDivisionError):
        async with paused(Plan(), lambda: threads.descendants(family), lambda: family):
            raise ZeroDivisionError
    assert await goes_on(family)
    with anyio.CancelScope() as scope:
        async with paused(Plan(), lambda: threads.descendants(family), lambda: family):
            scope.cancel()
            await anyio.sleep(30)
    assert await goes_on(family)


async def test_by_the_freezer_of_a_version_2_group(group: Path) -> None:
    """The kernel stops all of them, and one that is killed meanwhile is gone, frozen or not."""
    plan = Plan((str(group),), version=2)
    with started(group) as first:
        async with paused(plan, list, lambda: 0):
            assert await rests(first)
            assert (group / "cgroup.freeze").read_text() == "1\n"
        assert await goes_on(first)
        async with paused(plan, list, lambda: 0):
            sleeper = threads.descendants(first)[1]
            os.kill(sleeper, 9)
            for _ in range(2000):
                if Path(f"/proc/{sleeper}/stat").read_text().rpartition(") ")[2][0] == "Z":
                    break
                await anyio.sleep(0.01)
            else:
                pytest.fail("a killed process stays frozen")
