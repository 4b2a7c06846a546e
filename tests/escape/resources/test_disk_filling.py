"""Filling the disk."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import goes_off


@WHOEVER
async def test_the_disk_is_full_inside(inside: Inside) -> None:
    """At the sandbox's limit; it goes on when it has cleaned up."""
    await goes_off(inside, "disk", "cat /dev/zero > /tmp/x")
