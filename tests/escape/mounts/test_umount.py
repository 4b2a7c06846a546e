"""umount(2): taking away what masks a part of /proc."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "what masks /proc, gone": "call('umount2', b'/proc/keys', 2)",
    "a lazy end of /proc": "call('umount2', b'/proc', 2)",
}


async def test_nothing_is_unmounted(inside: Inside) -> None:
    """What lies over something stays there."""
    await inside.expect(ATTEMPTS, "EPERM")
