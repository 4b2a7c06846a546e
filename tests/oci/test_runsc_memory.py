"""Forks with memory at gVisor: what runs in a sandbox goes on in each of its children, and the parent goes on too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from tests.conftest import open_host

from proofbox.errors import Busy, CreateFailed
from proofbox.host.home import data_home
from proofbox.model.limits import MIB, Limits
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store
from proofbox.testing.orphans import children
from proofbox.testing.small import small_template

pytestmark = [pytest.mark.container, pytest.mark.anyio]

COUNTER = (
    "echo of the parent > /tmp/file; sleep 100000 </dev/null >/dev/null 2>&1 & echo $! > /tmp/sleeper;"
    " (exec 8>>/tmp/open; n=0; while :; do n=$((n + 1)); echo $n >&8; echo $n > /tmp/new; mv /tmp/new /tmp/count;"
    " sleep 0.2; done) </dev/null >/dev/null 2>&1 &"
)
"""Two processes: one that counts, with a file held open, and one whose number can be asked for."""
NAMES = "cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -A n -t x8 | tr -d ' '"
HELD = "(exec 9>/tmp/gone; rm /tmp/gone; exec sleep 100000) </dev/null >/dev/null 2>&1 & echo $! > /tmp/holder"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What is asserted here does not depend on the event loop."""
    return "asyncio"


@pytest.fixture(scope="module")
async def host(anyio_backend: str) -> AsyncIterator[Host]:
    """This machine with runsc; skipped with the reason where it does not run."""
    async with open_host("runsc") as found:
        yield found


@pytest.fixture(scope="module")
async def parent(host: Host) -> AsyncIterator[Sandbox]:
    """One in which something runs."""
    limits = Limits(disk=16 * MIB, wall=3000.0)
    async with host.open_sandbox(small_template(open_store()), limits=limits) as box:
        assert (await box.run(COUNTER)).ok
        yield box


async def _count(box: Sandbox, above: int = 0) -> int:
    """What its counter has come to, once that is more than ``above``."""
    with anyio.fail_after(60):
        while True:
            told = (await box.run("cat /tmp/count")).stdout.strip()
            if told and int(told) > above:
                return int(told)
            await anyio.sleep(0.05)


def _images() -> set[str]:
    """Saved memory on the disk."""
    return {str(path) for path in (data_home() / "making").glob("*/checkpoint.img")}


async def test_processes_go_on_in_every_child_and_in_a_child_of_a_child(parent: Sandbox) -> None:
    """From the same instant, each for itself, with names, random numbers, files and an open file of its own. What a
    child is forked from on disk, later, holds what its parent wrote too. The parent goes on.
    """
    before = await _count(parent)
    async with parent.fork(2, memory=True) as kids:
        async with kids[0].fork(memory=True) as grandchild:
            told = []
            for box in (parent, *kids, *grandchild):
                at = await _count(box)
                assert at >= before
                assert await _count(box, at) > at
                counted = (await box.run("kill -0 $(cat /tmp/sleeper) && cat /tmp/open")).stdout.split()
                assert counted == [str(number) for number in range(1, len(counted) + 1)]
                assert len(counted) > at
                told += (await box.run(NAMES)).stdout.split()
            assert len(set(told)) == len(told) == 8
        await kids[0].run("echo of a child > /tmp/file; kill $(cat /tmp/sleeper)")
        assert (await kids[1].run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"
        async with kids[0].fork() as (on_disk,):
            assert (await on_disk.run("cat /tmp/file")).stdout == "of a child\n"
    assert (await parent.run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"
    assert not _images()


async def test_what_cannot_be_carried_over_is_named_and_the_parent_goes_on(parent: Sandbox) -> None:
    """A file that is open and removed, which gVisor does not save; files in /dev/shm; a command under way."""
    before = children()
    command = await parent.start("read line; echo $line", stdin=True)
    with pytest.raises(Busy, match="being used"):
        async with parent.fork(memory=True):
            pass
    await command.send(b"line\n")
    assert (await command.wait()).stdout == "line\n"
    for make, match, undo in (
        (HELD, "gone.*deleted", "kill $(cat /tmp/holder)"),
        ("echo x > /dev/shm/x", "/dev/shm", "rm /dev/shm/x"),
    ):
        at = await _count(parent)
        await parent.run(make)
        with pytest.raises(CreateFailed, match=match):
            async with parent.fork(memory=True):
                pass
        await parent.run(undo)
        assert await _count(parent, at) > at
    assert children().keys() <= before.keys()
    assert not _images()


@pytest.mark.parametrize("seconds", [0.05, 0.4])
async def test_cancelled_fork_leaves_nothing(parent: Sandbox, seconds: float) -> None:
    """No child, no file; and its origin goes on."""
    at = await _count(parent)
    before = children()
    with anyio.move_on_after(seconds):
        async with parent.fork(2, memory=True):
            await anyio.sleep(60)
    assert await _count(parent, at) > at
    assert children().keys() <= before.keys()
    assert not _images()
