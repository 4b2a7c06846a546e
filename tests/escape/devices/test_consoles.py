"""Consoles of the host, and the pipe on which its init takes orders."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = opening("console", "tty0", "tty1", "ttyS0", "vcs", "initctl")


async def test_no_console_is_there(inside: Inside) -> None:
    """Neither to type into nor to read from."""
    await inside.expect(ATTEMPTS, "ENOENT", "ENXIO", "EACCES", "EPERM", "ENODEV")
