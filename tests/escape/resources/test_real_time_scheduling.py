"""Real-time scheduling and deadlines: running before everybody else on the machine."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "first in, first out": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "in turns, before all others": "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99))",
    "a deadline": """
import ctypes, struct
call('sched_setattr', 0, ctypes.create_string_buffer(struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10**6, 10**7, 10**7)), 0)
""",
}


async def test_nobody_runs_before_the_host(inside: Inside) -> None:
    """There is only the usual schedule."""
    await inside.expect(ATTEMPTS, "EPERM")
