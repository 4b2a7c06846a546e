"""Forks with memory at gVisor: what runs in a sandbox goes on in each of its children, and the parent goes on too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from tests.conftest import open_host

from proofbox.errors import CreateFailed
from proofbox.host.home import data_home
from proofbox.model.limits import MIB, Limits
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store
from proofbox.testing.counting import COUNTER, count
from proofbox.testing.orphans import children
from proofbox.testing.small import small_template

pytestmark = [pytest.mark.container, pytest.mark.anyio]

HELD = """(exec 9>/tmp/gone; rm /tmp/gone; exec sleep 100000) </dev/null >/dev/null 2>&1 & echo $! > /tmp/holder
until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.01; done"""


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


def _images() -> set[str]:
    """Saved memory on the disk."""
    return {str(path) for path in (data_home() / "making").glob("*/checkpoint.img")}


async def test_a_child_can_be_forked_itself(parent: Sandbox) -> None:
    """With memory; and from the disk, where that starts from what its parent wrote too. No saved memory is left."""
    before = await count(parent)
    async with parent.fork(memory=True) as (child,):
        async with child.fork(memory=True) as (grandchild,):
            assert await count(grandchild, before) > before
            assert (await grandchild.run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"
        await child.run("echo of a child > /tmp/file")
        async with child.fork() as (on_disk,):
            assert (await on_disk.run("cat /tmp/file")).stdout == "of a child\n"
    assert not _images()


async def test_what_cannot_be_carried_over_is_named_and_the_parent_goes_on(parent: Sandbox) -> None:
    """A file that is open and removed, which gVisor does not save; files in /dev/shm."""
    before = children()
    for make, match, undo in (
        (HELD, "gone.*deleted", "kill $(cat /tmp/holder)"),
        ("echo x > /dev/shm/x", "/dev/shm", "rm /dev/shm/x"),
    ):
        at = await count(parent)
        await parent.run(make)
        with pytest.raises(CreateFailed, match=match):
            async with parent.fork(memory=True):
                pass
        await parent.run(undo)
        assert await count(parent, at) > at
    assert children().keys() <= before.keys()
    assert not _images()


@pytest.mark.parametrize("seconds", [0.05, 0.4])
async def test_cancelled_fork_leaves_nothing(parent: Sandbox, seconds: float) -> None:
    """No child, no file; and its origin goes on."""
    at = await count(parent)
    before = children()
    with anyio.move_on_after(seconds):
        async with parent.fork(2, memory=True):
            await anyio.sleep(60)
    assert await count(parent, at) > at
    assert children().keys() <= before.keys()
    assert not _images()
