"""NS_GET_PARENT and NS_GET_USERNS: asking a namespace for the one above it."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "the user namespace above": "import fcntl; fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xb702)",
    "the PID namespace above": "import fcntl; fcntl.ioctl(os.open('/proc/self/ns/pid', 0), 0xb702)",
    "the owner of the user namespace above": """
import fcntl
fcntl.ioctl(fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xb701), 0xb702)
""",
}


async def test_the_namespace_above_is_not_shown(inside: Inside) -> None:
    """A sandbox's own are the topmost that it can name."""
    await inside.expect(ATTEMPTS, "EPERM")
