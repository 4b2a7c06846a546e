"""Clocks of the machine, set, or made to go faster."""

from __future__ import annotations

from tests.escape.conftest import Inside

TIME = "import ctypes; t = (ctypes.c_long * 2)(1, 0)\n"
ATTEMPTS = {
    "the time of day": TIME + "call('settimeofday', t, 0)",
    "the clock": TIME + "call('clock_settime', 0, t)",
    "the clock that only goes on": TIME + "call('clock_settime', 1, t)",
    "the time since boot": TIME + "call('clock_settime', 7, t)",
    "how fast it goes": TIME
    + "call('adjtimex', ctypes.create_string_buffer((0x4000).to_bytes(8, 'little') + bytes(400)))",
    "how fast one clock goes": TIME + "call('clock_adjtime', 0, ctypes.create_string_buffer(b'\\1' * 408))",
    "the clock of the board": "os.open('/dev/rtc', os.O_RDWR)",
    "an alarm that wakes the machine": "call('timer_create', 8, 0, b' ' * 8)",
}


async def test_no_clock_is_set(inside: Inside) -> None:
    """The clocks are the machine's."""
    await inside.expect(ATTEMPTS, "EPERM", "ENOENT", "ENOTSUP", "EOPNOTSUPP")
