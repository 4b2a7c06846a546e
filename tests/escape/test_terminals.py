"""Terminals: typing into somebody else's, and the code below them."""

from __future__ import annotations

from tests.escape.conftest import Inside

PTY = "import fcntl, struct; master, slave = os.openpty()\n"
ATTEMPTS = {
    "type into it": ("EPERM", PTY + "fcntl.ioctl(slave, 0x5412, b'x')"),
    "type into it, with bits that the kernel cuts off": ("EPERM", PTY + "call('ioctl', slave, 0x1_0000_5412, b'x')"),
    "paste into a console": ("EPERM", PTY + "fcntl.ioctl(slave, 0x541C, b'\\2')"),
    **{
        f"line discipline {number}": ("EPERM", PTY + f"fcntl.ioctl(slave, 0x5423, struct.pack('i', {number}))")
        for number in (1, 2, 3, 13, 15, 21)
    },
    "the console's output": ("EPERM", PTY + "fcntl.ioctl(slave, 0x541D)"),
    "the caller's terminal": ("ENXIO", "os.open('/dev/tty', os.O_RDWR)"),
    "the host's terminals": (
        "ENOENT",
        "os.setsid() if os.getpid() != os.getsid(0) else 0; os.open('/dev/pts/0', os.O_RDWR)",
    ),
    "what is no terminal, as its own": (
        "ENOTTY",
        "import fcntl; os.setsid(); fcntl.ioctl(os.open('/dev/null', os.O_RDWR | os.O_NOCTTY), 0x540E, 1)",
    ),
}


async def test_terminals_take_no_orders(inside: Inside) -> None:
    """What is written to one is output; nothing can be typed for its user, and no discipline loaded below it."""
    told = await inside.outcomes({name: code for name, (_, code) in ATTEMPTS.items()})
    assert told == {name: outcome for name, (outcome, _) in ATTEMPTS.items()}


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
