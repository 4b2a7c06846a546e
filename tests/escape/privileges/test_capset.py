"""capset(2): asking for capabilities."""

from __future__ import annotations

from tests.escape.conftest import Inside

CAPSET = """
import ctypes, struct
call('capset', ctypes.create_string_buffer(struct.pack('<II', 0x20080522, 0)), ctypes.create_string_buffer({}))
"""
ATTEMPTS = {
    "all capabilities": CAPSET.format("b'\\xff' * 24"),
    "CAP_SYS_ADMIN alone": CAPSET.format("struct.pack('<6I', 1 << 21, 1 << 21, 0, 0, 0, 0)"),
    "CAP_SYS_PTRACE to inherit": CAPSET.format("struct.pack('<6I', 0, 0, 1 << 19, 0, 0, 0)"),
}


async def test_no_capability_is_gained_by_asking(inside: Inside) -> None:
    """Not by root either, who has a few capabilities inside and not one outside."""
    await inside.expect(ATTEMPTS, "EPERM")
