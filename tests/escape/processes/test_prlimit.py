"""prlimit(2): limits of a process of the host."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "its limits": "import resource; resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))",
        "what they are": "import resource; said = resource.prlimit(pid, resource.RLIMIT_CPU)",
    }
)


async def test_a_process_of_the_host_keeps_its_limits(inside: Inside) -> None:
    """It does not exist inside."""
    await inside.expect(ATTEMPTS, "ESRCH")
