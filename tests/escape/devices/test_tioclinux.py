"""TIOCLINUX and TIOCCONS: pasting into a console, and taking over what is written to it."""

from __future__ import annotations

from tests.escape.attempts import PTY
from tests.escape.conftest import Inside

ATTEMPTS = {
    "paste into a console": PTY + "fcntl.ioctl(slave, 0x541C, b'\\2')",
    "the console's output": PTY + "fcntl.ioctl(slave, 0x541D)",
}


async def test_the_console_is_not_the_sandboxes(inside: Inside) -> None:
    """Neither is anything pasted, nor is its output led away."""
    await inside.expect(ATTEMPTS, "EPERM")
