"""Memory that no process has: a file in a file system of memory, which outlives who wrote it."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import goes_off


@WHOEVER
async def test_files_in_memory_fill_the_sandbox_and_no_more(inside: Inside) -> None:
    """They count as the sandbox's memory."""
    await goes_off(inside, "memory", "cat /dev/zero > /dev/shm/x")
