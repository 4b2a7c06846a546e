"""core_pattern: the program that the kernel starts, as the host's root, for each that crashes."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/core_pipe_limit", "/proc/sys/fs/suid_dumpable"),
    "a program of the sandbox's": "write('/proc/sys/kernel/core_pattern', '|/tmp/mine')",
    "past what is read-only": "write('/proc/self/root/proc/sys/kernel/core_pattern', '|/tmp/mine')",
    "from the directory": """
write(f'/proc/self/fd/{os.open("/proc/sys/kernel", os.O_PATH)}/core_pattern', '|/tmp/mine')
""",
}


async def test_the_program_for_crashes_is_the_hosts(inside: Inside) -> None:
    """Its path cannot be written, by whichever name the file is opened."""
    await inside.expect(ATTEMPTS, *CLOSED)
