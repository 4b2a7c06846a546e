"""Files in /proc that tell what everybody on the machine does: timers, waits, arguments of its boot, its load."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, reading
from tests.escape.conftest import Inside

ATTEMPTS = reading(
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/cmdline",
    "/proc/pressure/cpu",
)
GVISOR = {"/proc/cmdline": "BOOT_IMAGE=/vmlinuz-4.4.0-gvisor quiet\n"}


async def test_what_the_kernel_knows_of_others_cannot_be_read(inside: Inside) -> None:
    """Not there, not allowed, or empty."""
    await inside.expect(ATTEMPTS, "empty", *CLOSED, gvisor=GVISOR)
