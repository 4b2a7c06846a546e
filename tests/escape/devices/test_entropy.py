"""The kernel's random numbers: claiming that there are more, or forgetting those that were gathered."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "entropy": "import fcntl; fcntl.ioctl(os.open('/dev/urandom', os.O_RDWR), 0x5204, 0)",
    "more of it": "import fcntl; fcntl.ioctl(os.open('/dev/urandom', os.O_RDWR), 0x40045201, bytes([99, 0, 0, 0]))",
    "all anew": "import fcntl; fcntl.ioctl(os.open('/dev/urandom', os.O_RDWR), 0x5207, 0)",
}


async def test_the_kernels_random_numbers_are_its_own(inside: Inside) -> None:
    """Writing to the device adds to them, and nothing takes away."""
    await inside.expect(ATTEMPTS, "EPERM")
