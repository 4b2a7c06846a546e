"""Long lines of forks and of snapshots become one layer."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from tests.sandbox.forks.shown import output

from proofbox.sandbox.host import Host

pytestmark = [pytest.mark.container, pytest.mark.anyio]


async def test_a_long_line_of_forks_is_made_flat(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more layers would lie over each other than the bound allows they become one, and removals stay removed."""
    monkeypatch.setattr("proofbox.sandbox.fork.DEPTH_MOST", 3)
    async with host.open_sandbox() as first:
        await output(first, "mkdir -p /w/d; touch /w/d/0 /w/0; rm /etc/hostname")
        async with AsyncExitStack() as line:
            last = first
            for number in range(1, 8):
                await last.freeze()
                (last,) = await line.enter_async_context(last.fork())
                await output(last, f"rm /w/{number - 1}; touch /w/{number}")
                await output(last, f"test {number} != 5 || {{ rm -r /w/d; mkdir /w/d; }}; touch /w/d/{number}")
            assert len(last._life.stack.layers) <= 3
            assert await output(last, "ls /w /w/d; test -e /etc/hostname || echo removed") == (
                "/w:\n7\nd\n\n/w/d:\n5\n6\n7\nremoved"
            )


async def test_a_long_line_of_snapshots_is_made_flat(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they become one layer over the template at the bottom; what was removed on the way stays so."""
    monkeypatch.setattr("proofbox.sandbox.fork.DEPTH_MOST", 2)
    template = "host"
    for number in range(1, 6):
        async with host.open_sandbox(template) as box:
            await output(box, f"mkdir -p /w/d; rm -f /w/{number - 1} /etc/hostname; touch /w/{number} /w/d/{number}")
            await output(box, f"test {number} != 4 || {{ rm -r /w/d; mkdir /w/d; }}")
            made = await box.snapshot()
        assert sum(layer.target == "/" for layer in made.layers) <= 3
        template = made.digest
    async with host.open_sandbox(template) as box:
        assert (
            await output(box, "ls /w /w/d; test -e /etc/hostname || echo removed") == "/w:\n5\nd\n\n/w/d:\n5\nremoved"
        )
