"""The kernel's log, which tells of everybody, and to which one could add."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, opening, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    "read": "import ctypes; call('syslog', 3, ctypes.create_string_buffer(4096), 4096)",
    "read and cleared": "import ctypes; call('syslog', 4, ctypes.create_string_buffer(4096), 4096)",
    "not shown on the console any more": "call('syslog', 6, 0, 0)",
    **opening("kmsg"),
    **reading("/proc/kmsg"),
}
GVISOR = {"read": "done"}


async def test_the_log_is_closed(inside: Inside) -> None:
    """By the call, by the device and by the file. (gVisor makes one up.)"""
    await inside.expect(ATTEMPTS, "empty", *CLOSED, gvisor=GVISOR)
