"""clone3(2), whose flags lie behind a pointer, where no filter sees them."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, Inside

pytestmark = HOSTS_KERNEL

ATTEMPTS = {
    "clone3, whose flags no filter sees": """
import ctypes
call('clone3', ctypes.create_string_buffer((0x10000000).to_bytes(8, 'little') + bytes(80)), 88)
"""
}


async def test_the_call_with_hidden_flags_does_not_exist(inside: Inside) -> None:
    """Programs fall back to the one whose flags can be seen."""
    await inside.expect(ATTEMPTS, "ENOSYS")
