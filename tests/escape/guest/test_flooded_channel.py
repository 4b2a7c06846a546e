"""Flooding the channel with output, so that nobody else is heard."""

from __future__ import annotations

import anyio
from tests.escape.conftest import Inside


async def test_output_that_nobody_reads_is_in_nobodys_way(inside: Inside) -> None:
    """The channel is one for all: a command that fills all that it is given credit for leaves room for others."""
    async with inside.open_box() as box:
        for _ in range(3):
            await box.start("cat /dev/zero", user=inside.user, keep=None)
        with anyio.fail_after(60):
            for number in range(3):
                assert (await box.run(f"echo {number}", user=inside.user)).stdout == f"{number}\n"
