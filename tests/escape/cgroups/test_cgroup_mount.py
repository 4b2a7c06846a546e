"""Control groups, mounted: the way to their files."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "mounted as root does it": "call('mount', b'c', b'/mnt', b'cgroup', 0, b'none,name=mine')",
    "control groups, version 1": "call('mount', b'none', b'/mnt', b'cgroup', 0, b'memory')",
    "control groups, version 2": "call('mount', b'none', b'/mnt', b'cgroup2', 0, 0)",
}


async def test_control_groups_are_not_mounted(inside: Inside) -> None:
    """Of neither version."""
    await inside.expect(ATTEMPTS, "EPERM")
