"""Mounting again with other flags: writable, with devices, spreading to where the mount came from."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a part of /proc, writable again": "call('mount', b'none', b'/proc/sys', b'none', 0x1020, 0)",
    "its root, with devices": "call('mount', b'none', b'/', b'none', 0x20, 0)",
    "mounts that spread": "call('mount', b'none', b'/', b'none', 0x104000, 0)",
}


async def test_flags_of_mounts_stay(inside: Inside) -> None:
    """What is read-only and without devices remains so."""
    await inside.expect(ATTEMPTS, "EPERM")
