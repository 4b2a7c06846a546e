"""Cancellation at any point of a sandbox's life leaves no process, mount, cgroup, directory or descriptor."""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import AsyncIterator

import anyio
import pytest

from proofbox.errors import Refused
from proofbox.runtime import registry
from proofbox.sandbox.host import Host
from proofbox.testing.needs import skip_unless_required
from proofbox.testing.orphans import children, traces_of

pytestmark = pytest.mark.container


@pytest.fixture(params=["fake", "native", "crun", "process"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """This machine with each runtime that it has."""
    isolated = request.param in ("native", "crun")
    try:
        made = await Host.local(request.param, "container" if isolated else "none", allow_unisolated=not isolated)
    except Refused as refused:
        skip_unless_required(request.param, refused)
    yield made
    await made.aclose()


def held() -> tuple[set[str], set[int], list[str], set[str]]:
    """Descriptors by what they lead to, children, cgroups and mounts, and files of live state of this process."""
    descriptors = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            descriptors.add(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue  # the listing's own
    owner = registry.owner()
    files = {str(path) for path in owner.dir.rglob("*")} if owner.dir.exists() else set()
    return descriptors, set(children()), traces_of(owner.id), files


async def calm(host: Host) -> None:
    """One sandbox from nothing to nothing: afterwards what the runtime keeps for itself is there."""
    async with host.open_sandbox() as box:
        await box.run(["true"])
    await anyio.sleep(0.05)


async def test_a_storm_of_cancellations_leaves_nothing(host: Host) -> None:
    """A hundred lives, each given up at a random moment of its creation, its commands or its end."""
    await calm(host)
    before = held()
    chance = random.Random(7)
    longest = 0.3 if host.runtime_name == "crun" else 0.1
    seen = {"whole": 0, "cancelled": 0}

    async def life(patience: float) -> None:
        with anyio.move_on_after(patience) as scope:
            async with host.open_sandbox() as box:
                await box.run(["true"])
                await box.run("sleep 0.02" if host.runtime_name == "fake" else "setsid sleep 0.02 & sleep 0.02")
            seen["whole"] += 1
        seen["cancelled"] += scope.cancelled_caught

    for _ in range(5):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(life, chance.uniform(0, longest))
    assert seen["cancelled"] > 10, seen
    for _ in range(200):
        if held() == before:
            break
        await anyio.sleep(0.02)
    assert held() == before
    await calm(host)


async def test_all_creations_given_up_at_once_leave_nothing(host: Host) -> None:
    """Ctrl-C while thirty creations are under way."""
    await calm(host)
    before = held()

    async def create() -> None:
        async with host.open_sandbox():
            await anyio.sleep_forever()

    with anyio.move_on_after(0.01):
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(create)
    for _ in range(200):
        if held() == before:
            break
        await anyio.sleep(0.02)
    assert held() == before


async def test_reading_a_slow_stream_holds_up_no_other_sandbox(host: Host, tmp_path: pathlib.Path) -> None:
    """A consumer that never comes back for a command's output blocks that command alone."""
    async with host.open_sandbox() as slow, host.open_sandbox() as other:
        job = await slow.start("zeros 3000000" if host.runtime_name == "fake" else "yes | head -c 3000000", keep=None)
        async for _, data in job.output():
            assert data
            break
        for _ in range(3):
            assert (await other.run("echo on")).stdout == "on\n"
            assert (await slow.run("echo on")).stdout == "on\n"
        await job.kill()
