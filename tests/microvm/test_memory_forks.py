"""Forks with memory: what runs in a sandbox goes on in each of its children, which are sandboxes of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from proofbox.errors import Busy, InvalidInput, Refused
from proofbox.model.limits import MIB, Limits
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store
from proofbox.testing.needs import skip_unless_required
from proofbox.testing.orphans import children
from proofbox.testing.small import small_template

pytestmark = [pytest.mark.container, pytest.mark.anyio]

COUNTER = (
    "echo of the parent > /tmp/file; sleep 100000 </dev/null >/dev/null 2>&1 & echo $! > /tmp/sleeper;"
    " (n=0; while :; do n=$((n + 1)); echo $n > /tmp/new; mv /tmp/new /tmp/count; sleep 0.2; done)"
    " </dev/null >/dev/null 2>&1 &"
)
"""Two processes: one that counts, one whose number can be asked for."""
NAMES = "cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -A n -t x8 | tr -d ' '"


@pytest.fixture(scope="module")
async def parent(anyio_backend: str) -> AsyncIterator[Sandbox]:
    """One in which something runs."""
    try:
        host = await Host.local("microvm")
    except Refused as refused:
        skip_unless_required("microvm", refused)
    limits = Limits(memory=64 * MIB, disk=16 * MIB, wall=3000.0)
    async with host.open_sandbox(small_template(open_store()), limits=limits) as box:
        assert (await box.run(COUNTER)).ok
        yield box
    await host.aclose()


async def _count(box: Sandbox, above: int = 0) -> int:
    """What its counter has come to, once that is more than ``above``."""
    with anyio.fail_after(120):
        while True:
            told = (await box.run("cat /tmp/count")).stdout.strip()
            if told and int(told) > above:
                return int(told)
            await anyio.sleep(0.05)


async def test_processes_go_on_in_every_child(parent: Sandbox) -> None:
    """From the same instant, each for itself; names and random numbers are each one's own. The parent goes on too."""
    before = await _count(parent)
    async with parent.fork(2, memory=True) as kids:
        told = []
        for box in (parent, *kids):
            at = await _count(box)
            assert at >= before
            assert await _count(box, at) > at
            assert (await box.run("kill -0 $(cat /tmp/sleeper)")).ok
            told += (await box.run(NAMES)).stdout.split()
        assert len(set(told)) == len(told) == 6
        await kids[0].run("echo of a child > /tmp/file; kill $(cat /tmp/sleeper)")
        assert (await kids[1].run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"
    assert (await parent.run("cat /tmp/file; kill -0 $(cat /tmp/sleeper)")).stdout == "of the parent\n"


async def test_it_is_refused_while_something_is_under_way(parent: Sandbox) -> None:
    """Whoever waits for a command waits in one sandbox: the children would answer too. The command goes on."""
    command = await parent.start("read line; echo $line", stdin=True)
    with pytest.raises(Busy, match="being used"):
        async with parent.fork(memory=True):
            pass
    await command.send(b"line\n")
    assert (await command.wait()).stdout == "line\n"


async def test_limits_stay(parent: Sandbox) -> None:
    """A machine has the size that it has."""
    with pytest.raises(InvalidInput, match="limits"):
        async with parent.fork(memory=True, limits=Limits(memory=128 * MIB)):
            pass


@pytest.mark.parametrize("seconds", [0.05, 0.6])
async def test_cancelled_fork_leaves_no_machine(parent: Sandbox, seconds: float) -> None:
    """And its origin goes on."""
    before, at = children(), await _count(parent)
    with anyio.move_on_after(seconds):
        async with parent.fork(2, memory=True):
            await anyio.sleep(60)
    assert children().keys() <= before.keys()
    assert await _count(parent, at) > at
