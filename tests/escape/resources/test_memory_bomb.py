"""A memory bomb: a process that takes all there is."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import goes_off


@WHOEVER
async def test_a_memory_bomb_goes_off_inside(inside: Inside) -> None:
    """It is killed at the sandbox's limit, before the host has none left."""
    await goes_off(inside, "memory", "tail /dev/zero")
