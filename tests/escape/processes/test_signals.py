"""Signals to a process of the host, by the number that it has there, and by every way to send one."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

SIGNAL = "import ctypes; info = ctypes.create_string_buffer(bytes(8) + b'\\xff' * 4 + bytes(116))\n"
ATTEMPTS = on_the_hosts(
    {
        "kill it": "os.kill(pid, 9)",
        "kill its session": "os.killpg(pid, 9)",
        "queue a signal": SIGNAL + "call('rt_sigqueueinfo', pid, 9, info)",
        "kill its thread": "call('tgkill', pid, pid, 9)",
        "kill whoever has its thread": "call('tkill', pid, 9)",
        "hold it": "call('pidfd_open', pid, 0)",
        "have it told when a file changes": """
import fcntl
near, far = os.pipe()
fcntl.fcntl(near, fcntl.F_SETOWN, pid)
""",
    }
)


async def test_a_process_of_the_host_gets_no_signal(inside: Inside) -> None:
    """Its number means nothing inside, or somebody inside."""
    await inside.expect(ATTEMPTS, "ESRCH")
