"""Graphics cards, accelerators and devices that type: large drivers, and the user's keyboard."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import Inside

ATTEMPTS = opening("dri/card0", "nvidia0", "nvidiactl", "uinput", "input/event0", "snd/controlC0", "video0")


async def test_no_driver_of_a_desktop_is_reached(inside: Inside) -> None:
    """The nodes are not there."""
    await inside.expect(ATTEMPTS, "ENOENT")
