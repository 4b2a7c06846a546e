"""ptrace(2) of a process of the host."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "trace it": "call('ptrace', 0x4206, pid, 0, 0)",
        "attach to it": "call('ptrace', 16, pid, 0, 0)",
    }
)


async def test_a_process_of_the_host_is_not_traced(inside: Inside) -> None:
    """It does not exist inside."""
    await inside.expect(ATTEMPTS, "ESRCH")
