"""Semaphores and message queues of another sandbox, by their keys and names."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

ATTEMPTS = {
    "a semaphore": "call('semget', 4712, 0, 0)",
    "a message queue": "call('msgget', 4713, 0)",
    "a POSIX message queue": "call('mq_open', b'neighbour', 2, 0, 0)",
}


@pytest.mark.usefixtures("neighbour")
async def test_objects_of_a_neighbour_are_not_there(inside: Inside) -> None:
    """Keys and names are a sandbox's own."""
    await inside.expect(ATTEMPTS, "ENOENT")
