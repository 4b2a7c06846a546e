"""modprobe: the program that the kernel starts, as the host's root, to load a module."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/proc/sys/kernel/modprobe"),
    "the program that loads them": "write('/proc/sys/kernel/modprobe', '/tmp/mine')",
}


async def test_the_program_for_modules_is_the_hosts(inside: Inside) -> None:
    """Its path cannot be written."""
    await inside.expect(ATTEMPTS, *CLOSED)
