"""TIOCSTI: typing into a terminal as if its user had."""

from __future__ import annotations

from tests.escape.attempts import PTY
from tests.escape.conftest import HOSTS_KERNEL, Inside

ATTEMPTS = {
    "type into it": PTY + "fcntl.ioctl(slave, 0x5412, b'x')",
    "type into it, with bits that the kernel cuts off": PTY + "call('ioctl', slave, 0x1_0000_5412, b'x')",
}


async def test_nothing_is_typed_for_its_user(inside: Inside) -> None:
    """What is written to a terminal is output."""
    await inside.expect(ATTEMPTS, "EPERM")


@HOSTS_KERNEL
async def test_a_command_at_a_terminal_types_for_nobody(inside: Inside) -> None:
    """The terminal of ``run(pty=...)``: a program tries to leave a command for whoever reads from it next."""
    text = """
import fcntl, os
for letter in b'touch /tmp/typed\\n':
    try:
        fcntl.ioctl(0, 0x5412, bytes([letter]))
    except OSError as error:
        print(error.errno)
        break
"""
    result = await inside.box.run(["python3", "-I", "-S", "-c", text], user=inside.user, pty=(24, 80))
    assert result.stdout.split() == ["1"]
