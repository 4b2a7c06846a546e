"""Sandboxes that go on where another one is, its processes included: where they are not offered they are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from proofbox.errors import Busy, InvalidInput, Refused
from proofbox.model.limits import MIB, Limits
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.testing.counting import COUNTER, count
from proofbox.testing.needs import OpenBox, check
from proofbox.testing.orphans import children

NAMES = "cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -A n -t x8 | tr -d ' '"


@asynccontextmanager
async def counting(host: Host, open_box: OpenBox) -> AsyncIterator[Sandbox]:
    """One in which something runs. Skips the check where the runtime refuses, which must leave it as it was."""
    memory = 128 * MIB if "memory" in host.probe.enforces else None
    async with open_box(limits=Limits(memory=memory, disk=16 * MIB, wall=3000.0)) as box:
        assert (await box.run(COUNTER)).ok
        at = await count(box)
        try:
            async with box.fork(memory=True):
                pass
        except Refused as refused:
            assert await count(box, at) > at
            pytest.skip(str(refused))
        yield box


@check(enforces=("disk",))
async def test_a_fork_with_memory_goes_on_in_every_child(conformance_host: Host, open_box: OpenBox) -> None:
    """From the same instant, each for itself; names and random numbers are each one's own. The parent goes on too."""
    async with counting(conformance_host, open_box) as parent:
        before = await count(parent)
        async with parent.fork(2, memory=True) as kids:
            told = []
            for box in (parent, *kids):
                at = await count(box)
                assert at >= before
                assert await count(box, at) > at
                counted = (await box.run("kill -0 $(cat /tmp/sleeper) && cat /tmp/open")).stdout.split()
                assert counted == [str(number) for number in range(1, len(counted) + 1)]
                told += (await box.run(NAMES)).stdout.split()
            assert len(set(told)) == len(told) == 6
            await kids[0].run("echo of a child > /tmp/file; kill $(cat /tmp/sleeper)")
            assert (await kids[1].run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"
        assert (await parent.run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"


@check(enforces=("disk",))
async def test_a_fork_with_memory_that_cannot_be_is_named_and_leaves_nothing(
    conformance_host: Host, open_box: OpenBox
) -> None:
    """While a command is under way, whose caller waits in one sandbox; with other limits; cancelled. All goes on."""
    async with counting(conformance_host, open_box) as parent:
        before = children()
        command = await parent.start("read line; echo $line", stdin=True)
        with pytest.raises(Busy, match="being used"):
            async with parent.fork(memory=True):
                pass
        await command.send(b"line\n")
        assert (await command.wait()).stdout == "line\n"
        with pytest.raises(InvalidInput, match="limits"):
            async with parent.fork(memory=True, limits=Limits(disk=32 * MIB)):
                pass
        for seconds in (0.05, 0.5):
            at = await count(parent)
            with anyio.move_on_after(seconds):
                async with parent.fork(2, memory=True):
                    await anyio.sleep(60)
            assert await count(parent, at) > at
            assert children().keys() <= before.keys()
