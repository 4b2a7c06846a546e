"""perf_event_open(2): counters of the processor, which tell of others, and a history of holes (CVE-2013-2094)."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

OPEN = """
import ctypes, struct
about = ctypes.create_string_buffer(struct.pack('<IIQ', {}, 112, {}) + bytes(96))
call('perf_event_open', about, {}, {}, -1, 0)
"""
ATTEMPTS = {
    "its own page faults": OPEN.format(1, 2, 0, -1),
    "its own cycles": OPEN.format(0, 0, 0, -1),
    "everybody's cycles": OPEN.format(0, 0, -1, 0),
    "the kernel's trace points": OPEN.format(2, 1, -1, 0),
    "a process of the host": OPEN.format(1, 0, "GIVEN['pid']", -1),
    **changing("/proc/sys/kernel/perf_event_paranoid"),
}


async def test_nothing_is_counted(inside: Inside) -> None:
    """Neither of itself nor of others."""
    await inside.expect(ATTEMPTS, "ENOSYS", *CLOSED)
