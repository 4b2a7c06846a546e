"""iopl, ioperm: the ports of the hardware, from a program."""

from __future__ import annotations

from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    "all ports": "call('iopl', 3)",
    "the ports of the firmware's configuration": "call('ioperm', 0x510, 12, 1)",
    "the port that ends QEMU": "call('ioperm', 0x501, 1, 1)",
    "the keyboard's, which resets": "call('ioperm', 0x64, 1, 1)",
}


async def test_no_port_is_opened_to_a_program(inside: Inside) -> None:
    """Neither all nor a few."""
    await inside.expect(ATTEMPTS, "EPERM", "ENOSYS")
