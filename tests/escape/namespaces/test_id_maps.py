"""uid_map, gid_map and setgroups: giving oneself other ids, the host's among them."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "other ids": "write('/proc/self/uid_map', '0 0 4294967295')",
    "other groups": "write('/proc/self/gid_map', '0 0 4294967295')",
    "the guest's ids": "write('/proc/1/uid_map', '0 0 1')",
}


async def test_the_maps_of_ids_are_not_written(inside: Inside) -> None:
    """Which ids there are was said once, from outside."""
    before = await inside.box.read("/proc/self/uid_map")
    await inside.expect(ATTEMPTS, "EPERM", "EACCES")
    assert await inside.box.read("/proc/self/uid_map") == before
