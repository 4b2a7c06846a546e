"""uevent_helper and hotplug: the program that the kernel starts, as the host's root, for each new device."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = changing("/sys/kernel/uevent_helper", "/proc/sys/kernel/hotplug")


async def test_the_program_for_devices_is_the_hosts(inside: Inside) -> None:
    """Its path cannot be written."""
    await inside.expect(ATTEMPTS, *CLOSED)
