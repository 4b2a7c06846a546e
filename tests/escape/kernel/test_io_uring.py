"""io_uring: calls that no filter sees, and a history of holes (CVE-2021-41073, CVE-2022-29582, CVE-2023-2598)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a ring": "import ctypes; call('io_uring_setup', 8, ctypes.create_string_buffer(120))",
    "a ring whose queue the kernel looks at by itself": """
import ctypes, struct
call('io_uring_setup', 8, ctypes.create_string_buffer(struct.pack('<III', 0, 0, 2) + bytes(108)))
""",
    "into somebody's ring": "call('io_uring_enter', 3, 1, 0, 0, 0, 0)",
    "buffers for a ring": "call('io_uring_register', 3, 0, 0, 0)",
    "a ring by its number": "import ctypes; call(425, 8, ctypes.create_string_buffer(120))",
}


async def test_there_is_no_ring(inside: Inside) -> None:
    """Programs fall back to epoll."""
    await inside.expect(ATTEMPTS, "ENOSYS")
