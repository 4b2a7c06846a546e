"""/proc/PID/mem of a process of the host: its memory, as a file."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "open its memory": "os.open(f'/proc/{pid}/mem', os.O_RDWR)",
        "its memory map": "read(f'/proc/{pid}/maps')",
        "its pages": "os.open(f'/proc/{pid}/pagemap', os.O_RDONLY)",
        "what has been touched, forgotten": "write(f'/proc/{pid}/clear_refs', '1')",
    }
)


async def test_there_is_no_memory_of_the_hosts_to_open(inside: Inside) -> None:
    """No directory of /proc is of a process outside."""
    await inside.expect(ATTEMPTS, "ENOENT")
