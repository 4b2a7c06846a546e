"""move_pages, process_mrelease, process_madvise: the guest's memory, moved elsewhere or taken away."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ADVISE = """import ctypes, struct
v = ctypes.create_string_buffer(struct.pack('QQ', 4096, 4096))
call('process_madvise', call('pidfd_open', pid, 0), v, 1, 21, 0)"""
ATTEMPTS = on_the_guest(
    {
        "its pages, moved": "call('move_pages', pid, 0, 0, 0, 0, 0)",
        "its pages, to another node": "call('migrate_pages', pid, 64, 0, 0)",
        "its memory, given back": "call('process_mrelease', call('pidfd_open', pid, 0), 0)",
        "its memory, not wanted": ADVISE,
    }
)


async def test_the_pages_of_the_guest_stay(inside: Inside) -> None:
    """Where they are, and in memory."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EINVAL")
