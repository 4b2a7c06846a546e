"""/proc/PID/root of a process of the host: the host's whole tree."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "its root": "os.listdir(f'/proc/{pid}/root/')",
        "a file below it": "read(f'/proc/{pid}/root' + GIVEN['file'])",
        "its working directory": "os.listdir(f'/proc/{pid}/cwd/')",
        "its program": "os.open(f'/proc/{pid}/exe', os.O_RDONLY)",
        "the root of its thread": "os.listdir(f'/proc/{pid}/task/{pid}/root/')",
    }
)


async def test_there_is_no_root_of_the_hosts_to_go_through(inside: Inside) -> None:
    """No directory of /proc is of a process outside."""
    await inside.expect(ATTEMPTS, "ENOENT")
