"""Long lines of forks and of snapshots become one layer."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.forks.shown import needs_marks, output, until

from proofbox.host import layers
from proofbox.sandbox import stack
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

pytestmark = [pytest.mark.container, pytest.mark.anyio]


SHOWN = "ls /w /w/d; test -e /etc/hostname || echo removed"


async def longer(host: Host, line: AsyncExitStack, last: Sandbox, numbers: range) -> Sandbox:
    """A fork of a fork of a fork ..., each of which removes what its parent made and makes one file of its own."""
    for number in numbers:
        await last.freeze()
        (last,) = await line.enter_async_context(last.fork())
        await output(last, f"rm /w/{number - 1}; touch /w/{number}")
        await output(last, f"test {number} != 5 || {{ rm -r /w/d; mkdir /w/d; }}; touch /w/d/{number}")
    return last


async def test_a_long_line_of_forks_is_made_flat(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more layers would lie over each other than the bound allows they become one, and removals stay removed."""
    needs_marks(host)
    monkeypatch.setattr("proofbox.sandbox.fork.DEPTH_MOST", 3)
    async with host.open_sandbox() as first, AsyncExitStack() as line:
        await output(first, "mkdir -p /w/d; touch /w/d/0 /w/0; rm /etc/hostname")
        last = await longer(host, line, first, range(1, 8))
        assert len(last._life.stack.layers) <= 3
        assert await output(last, SHOWN) == "/w:\n7\nd\n\n/w/d:\n5\n6\n7\nremoved"


async def test_layers_become_one_in_the_background(host: Host, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From some depth on, for those that are forked later: they have fewer layers below them and see the same, as do
    those that were there before. Nothing of it is left when all are closed.
    """
    needs_marks(host)
    monkeypatch.setattr("proofbox.sandbox.stack.DEPTH_LONG", 3)
    async with host.open_sandbox() as first, AsyncExitStack() as line:
        await output(first, "mkdir -p /w/d; touch /w/d/0 /w/0; rm /etc/hostname")
        before = await longer(host, line, first, range(1, 5))
        wanted = await output(before, SHOWN)
        async with before.fork() as (child,):
            assert await output(child, SHOWN) == wanted
        await before._life.stack.flattened()
        async with before.fork(2) as (one, two):
            assert len(before._life.stack.layers) == 4
            assert len(one._life.stack.layers) < 4
            await output(one, "rm -r /w/d")
            assert await output(two, SHOWN) == await output(before, SHOWN) == wanted
        last = await longer(host, line, before, range(5, 9))
        assert await output(last, SHOWN) == "/w:\n8\nd\n\n/w/d:\n5\n6\n7\n8\nremoved"

    async def removed() -> bool:
        return not list(home.glob("making/*"))

    await until(removed)


async def test_who_would_be_too_deep_waits_for_what_is_being_made_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts from that, and no second copy is made for it."""
    if not layers.can_stack():
        pytest.skip("before Linux 6.3 root's forks start from one layer in any case")
    made = []
    make = stack.capture

    async def counted(*given: Any, **named: Any) -> stack.Captured:
        made.append(given)
        return await make(*given, **named)

    monkeypatch.setattr("proofbox.sandbox.stack.capture", counted)
    monkeypatch.setattr("proofbox.sandbox.fork.capture", counted)
    monkeypatch.setattr("proofbox.sandbox.stack.DEPTH_LONG", 2)
    monkeypatch.setattr("proofbox.sandbox.fork.DEPTH_MOST", 2)
    async with host.open_sandbox() as first, AsyncExitStack() as line:
        await output(first, "mkdir -p /w/d; touch /w/d/0 /w/0; head -c 3000000 /dev/urandom > /big")
        last = await longer(host, line, first, range(1, 3))
        assert (len(last._life.stack.layers), len(made)) == (2, 0)
        last = await longer(host, line, last, range(3, 4))
        assert (len(last._life.stack.layers), len(made)) == (2, 1)
        assert await output(last, "ls /w /w/d; stat -c %s /big") == "/w:\n3\nd\n\n/w/d:\n0\n1\n2\n3\n3000000"


async def test_a_long_line_of_snapshots_is_made_flat(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they become one layer over the template at the bottom; what was removed on the way stays so."""
    needs_marks(host)
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
