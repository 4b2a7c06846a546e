"""Clocks: the machine's, and the one by which a command's time is up."""

from __future__ import annotations

import anyio
from tests.escape.conftest import Inside

from proofbox.model.outcome import HitLimit

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


TRICKS = (
    "trap '' TERM INT HUP ALRM XCPU; while :; do sleep 1; done",
    "kill -STOP $$; sleep 60",
    "setsid sleep 60",
    "exec 1>&- 2>&-; sleep 60",
)


async def test_time_is_up_whatever_the_command_does(inside: Inside) -> None:
    """The clock that counts is the host's: deaf, stopped, silent or in another session, each ends in time."""

    async def one(trick: str) -> None:
        result = await inside.box.run(trick, user=inside.user, timeout=0.15)
        assert isinstance(result.outcome, HitLimit), trick
        assert result.outcome.kind == "command_wall"

    async with anyio.create_task_group() as group:
        for trick in TRICKS:
            group.start_soon(one, trick)
