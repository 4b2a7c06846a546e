"""sysrq: orders to the kernel by a key or a file: reboot, kill everybody, show what is in the registers."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = changing("/proc/sys/kernel/sysrq", "/proc/sysrq-trigger")
OPENED = {"/proc/sysrq-trigger opened again by its descriptor": "done"}
"""At gVisor, whose own it is."""


async def test_the_kernel_takes_no_orders(inside: Inside) -> None:
    """Neither is it told to take them."""
    await inside.expect(ATTEMPTS, *CLOSED, gvisor=OPENED)
