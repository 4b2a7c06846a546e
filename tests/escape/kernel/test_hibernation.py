"""Putting the machine to sleep, by its files."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing, opening
from tests.escape.conftest import Inside

ATTEMPTS = {**changing("/sys/power/state", "/sys/power/disk"), **opening("snapshot")}


async def test_the_machine_stays_awake(inside: Inside) -> None:
    """The files are not there."""
    await inside.expect(ATTEMPTS, *CLOSED)
