"""System V shared memory of another sandbox, by its key."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

ATTEMPTS = {
    "shared memory": "call('shmget', 4711, 0, 0)",
    "all shared memory": "said = read('/proc/sysvipc/shm').splitlines()[1:] or 'none'",
}


@pytest.mark.usefixtures("neighbour")
async def test_memory_of_a_neighbour_is_not_there(inside: Inside) -> None:
    """Keys are a sandbox's own."""
    await inside.expect(ATTEMPTS, "ENOENT", "none")
