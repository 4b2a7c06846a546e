"""Sandboxes that start from another one's files: alike where they are offered, refused where they are not."""

from __future__ import annotations

import pytest

from proofbox.errors import Refused, SandboxLost
from proofbox.sandbox.api import Sandbox
from proofbox.testing.needs import OpenBox, alive, check


async def offered(box: Sandbox) -> None:
    """Skips the check where the runtime refuses, which must leave the sandbox as it was."""
    try:
        async with box.fork():
            return
    except Refused as refused:
        assert (await box.run("echo on")).stdout == "on\n"
        pytest.skip(str(refused))


@check()
async def test_a_fork_has_the_files_and_not_the_processes(open_box: OpenBox, marker: str) -> None:
    """Children see what the parent wrote and removed, write for themselves alone, and run nothing of its."""
    async with open_box() as box:
        await offered(box)
        await box.run(
            f"mkdir /w; echo parent > /w/f; ln /w/f /w/g; rm /etc/hostname; sleep {marker} > /dev/null 2>&1 &"
        )
        async with box.fork(2) as (one, two):
            assert await alive(one, marker) == []
            assert (
                await one.run("cat /w/f /w/g; test -e /etc/hostname || echo none")
            ).stdout == "parent\nparent\nnone\n"
            await one.run("echo child > /w/f; rm /w/g")
            assert (await two.run("cat /w/f /w/g")).stdout == "parent\nparent\n"
        assert (await box.run("cat /w/f")).stdout == "parent\n"
        assert await alive(box, marker) != []


@check()
async def test_a_frozen_sandbox_is_a_final_state(open_box: OpenBox) -> None:
    """It runs nothing any more, and any number of sandboxes can start from it."""
    async with open_box() as box:
        await offered(box)
        await box.write("/final", "state")
        await box.freeze()
        with pytest.raises(SandboxLost, match="frozen"):
            await box.run("true")
        for _ in range(2):
            async with box.fork() as (child,):
                assert await child.read("/final") == b"state"
                await child.write("/final", "changed")
