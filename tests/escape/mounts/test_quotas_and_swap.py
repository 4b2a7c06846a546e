"""Quotas of a disk, and swap space in a file that the kernel would write to."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "quotas": "call('quotactl', 0x80000200, b'/dev/vda', 0, 0)",
    "swap space": "call('swapon', b'/etc/passwd', 0)",
    "swap space, taken away": "call('swapoff', b'/dev/vda')",
}


async def test_no_disk_is_managed(inside: Inside) -> None:
    """It is the machine's."""
    await inside.expect(ATTEMPTS, "EPERM")
