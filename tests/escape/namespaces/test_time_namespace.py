"""timens_offsets: another time since boot, for programs that measure with it."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "another clock": "write('/proc/self/timens_offsets', 'monotonic 100000 0')",
    "the guest's clock": "write('/proc/1/timens_offsets', 'boottime 100000 0')",
    "a namespace of its own": "call('unshare', 0x80); write('/proc/self/timens_offsets', 'monotonic 100000 0')",
}


async def test_no_clock_is_moved_by_a_namespace(inside: Inside) -> None:
    """Neither its own nor another's."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES")
