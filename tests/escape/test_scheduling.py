"""Taking more of the machine than one is given: real-time scheduling, priorities, locked memory, being spared."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "first in, first out": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "in turns, before all others": "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99))",
    "a deadline": """
import ctypes, struct
call('sched_setattr', 0, ctypes.create_string_buffer(struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10**6, 10**7, 10**7)), 0)
""",
    "a higher priority": "os.setpriority(os.PRIO_PROCESS, 0, -20)",
    "the disk first": "call('ioprio_set', 1, 0, 1 << 13)",
    "spared when memory runs out": "write('/proc/self/oom_score_adj', '-1000')",
    "a higher limit on priority": "import resource; resource.setrlimit(resource.RLIMIT_RTPRIO, (99, 99))",
    "a higher limit on files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))",
    "more pending signals": "import resource; resource.setrlimit(resource.RLIMIT_SIGPENDING, (1 << 30, 1 << 30))",
    "a longer queue of messages": "import resource; resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1 << 30, 1 << 30))",
    "larger pipes": "import fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 30)",
}


async def test_no_more_than_its_share(inside: Inside) -> None:
    """What would put it before the host's own programs is refused."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EINVAL", "ValueError('not allowed to raise maximum limit')")
