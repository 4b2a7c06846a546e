"""TIOCSETD: other code of the kernel's below a terminal, some of which had holes (CVE-2017-2636, CVE-2023-6546)."""

from __future__ import annotations

from tests.escape.attempts import PTY
from tests.escape.conftest import Inside

ATTEMPTS = {
    f"line discipline {number}": PTY + f"fcntl.ioctl(slave, 0x5423, struct.pack('i', {number}))"
    for number in (1, 2, 3, 13, 15, 21)
}


async def test_no_line_discipline_is_set(inside: Inside) -> None:
    """Before it would be loaded."""
    await inside.expect(ATTEMPTS, "EPERM")
