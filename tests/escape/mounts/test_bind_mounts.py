"""Bind mounts: the same files in another place, without what lies over them."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "the root, bound elsewhere": "call('mount', b'/', b'/mnt', b'none', 0x5000, 0)",
    "a file over what is read-only": "call('mount', b'/etc/passwd', b'/proc/version', b'none', 0x1000, 0)",
    "a mount, moved": "call('mount', b'/proc', b'/mnt', b'none', 0x2000, 0)",
}


async def test_nothing_is_bound_elsewhere(inside: Inside) -> None:
    """Neither the root, nor a file, nor what is mounted."""
    await inside.expect(ATTEMPTS, "EPERM")
