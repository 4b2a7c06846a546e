"""Terminals of the host: the one that the caller sits at, and those of others."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "the caller's terminal": "os.open('/dev/tty', os.O_RDWR)",
    "the host's terminals": "os.setsid() if os.getpid() != os.getsid(0) else 0; os.open('/dev/pts/0', os.O_RDWR)",
    "what is no terminal, as its own": "import fcntl; os.setsid(); "
    "fcntl.ioctl(os.open('/dev/null', os.O_RDWR | os.O_NOCTTY), 0x540E, 1)",
}


async def test_no_terminal_of_the_host_is_opened(inside: Inside) -> None:
    """There is none, and terminals that the sandbox makes are its own."""
    await inside.expect(ATTEMPTS, "ENXIO", "ENOENT", "ENOTTY")
