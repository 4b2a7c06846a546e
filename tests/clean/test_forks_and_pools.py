"""The same ways across forks and warm pools: a member nobody had is clean, and a child has its parent's files alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.clean.ways import ACROSS, Way, is_there

from proofbox.model.fingerprint import Fingerprint, difference
from proofbox.model.outcome import Exited
from proofbox.model.template import Template
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.sandbox.pool import Pool

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("host", ["native"], indirect=True)]


async def do(way: Way, box: Sandbox) -> None:
    """Or try to."""
    done = await box.run(["dirty", "do", way.name])
    assert done.outcome in (
        (Exited(0),) if (way.parts and not way.only_at) or way.unseen else (Exited(0), Exited(2))
    ), done


@pytest.fixture(scope="module")
async def pool(host: Host, template: Template) -> AsyncIterator[Pool]:
    """Members are made while others are dirtied."""
    async with host.pool(template, size=(2, 4)) as made:
        await made.ready()
        yield made


@pytest.fixture(scope="module")
async def parent(host: Host, template: Template) -> AsyncIterator[Sandbox]:
    """Frozen, after it wrote a file and left behind what no child may have."""
    async with host.open_sandbox(template) as box:
        await box.write("/tmp/of-the-parent", "kept")
        for way in ("tcp listener", "system v shared memory", "posix message queue", "posix shared memory", "daemon"):
            assert (await box.run(["dirty", "do", way])).ok
        await box.freeze()
        yield box


@pytest.fixture(scope="module")
async def child(parent: Sandbox) -> Fingerprint:
    """What every child of it is before anything runs in it."""
    async with parent.fork() as (box,):
        return await box.fingerprint(full=True)


def skip_without_users(way: Way, host: Host) -> None:
    """Some ways need several users inside."""
    if way.users and not host.probe.users:
        pytest.skip("sandboxes of this host have one user")


@pytest.mark.parametrize("way", ACROSS, ids=lambda way: way.name)
async def test_the_next_claim_cannot_see(way: Way, host: Host, pool: Pool, expected: Fingerprint) -> None:
    """A member is what a sandbox is that was made when it was asked for, whatever was done in the one before."""
    skip_without_users(way, host)
    async with pool.claim() as box:
        assert difference(expected, await box.fingerprint(full=True)) == ()
        await do(way, box)
        async with pool.claim() as other:
            assert difference(expected, await other.fingerprint(full=True)) == ()
            assert not await is_there(other, way)


@pytest.mark.parametrize("way", ACROSS, ids=lambda way: way.name)
async def test_a_sibling_cannot_see(way: Way, host: Host, parent: Sandbox, child: Fingerprint) -> None:
    """What one child does is seen by none that lives beside it, and by none that is forked later."""
    skip_without_users(way, host)
    async with parent.fork(2) as (one, two):
        await do(way, one)
        assert difference(child, await two.fingerprint(full=True)) == ()
        assert not await is_there(two, way)
        async with parent.fork() as (later,):
            assert difference(child, await later.fingerprint(full=True)) == ()


async def test_a_child_has_the_files_of_its_parent_and_nothing_else(
    parent: Sandbox, child: Fingerprint, expected: Fingerprint
) -> None:
    """No process, socket, key, IPC object or shared memory is carried over, and its numbers are its own."""
    changed = {line.partition(":")[0] for line in difference(expected, child)}
    assert changed <= {"files", "mounts"}
    assert any(line.startswith("/tmp/of-the-parent ") for line in child.part("files").lines)
    assert not any("/dev/shm/" in line for line in child.part("files").lines)
    async with parent.fork(2) as (one, two):
        assert await one.read("/etc/machine-id") != await two.read("/etc/machine-id")
