"""Devices of the board: the watchdog, which resets, the clock, the source of random numbers."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    **opening("watchdog", "rtc0", "hwrng", "tpm0"),
    "a watchdog": "os.open('/dev/watchdog', os.O_WRONLY)",
    "its random numbers": "os.open('/dev/hwrng', os.O_RDONLY)",
}


async def test_no_device_of_the_board_is_there(inside: Inside) -> None:
    """The nodes are not there."""
    await inside.expect(ATTEMPTS, "ENOENT")
