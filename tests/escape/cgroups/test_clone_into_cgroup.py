"""CLONE_INTO_CGROUP: a child that is born in another group."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "into a new group from birth": """
import ctypes, struct
call('clone3', ctypes.create_string_buffer(struct.pack('11Q', 1 << 33, *[0] * 9, os.open('/', 0))), 88)
""",
}


async def test_no_child_is_born_in_another_group(inside: Inside) -> None:
    """The call that could does not exist."""
    await inside.expect(ATTEMPTS, "ENOSYS")
