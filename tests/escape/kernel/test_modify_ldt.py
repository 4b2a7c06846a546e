"""modify_ldt(2): segments of one's own, with a history of holes (CVE-2015-5157, CVE-2017-17053)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a segment of 16 bits": """
import ctypes, struct
call('modify_ldt', 1, ctypes.create_string_buffer(struct.pack('<4I', 0, 0, 0xffff, 0x50)), 16)
""",
    "which there are": "import ctypes; call('modify_ldt', 0, ctypes.create_string_buffer(64), 64)",
}


async def test_no_segment_is_made(inside: Inside) -> None:
    """Programs of today have none."""
    await inside.expect(ATTEMPTS, "EPERM", "ENOSYS")
