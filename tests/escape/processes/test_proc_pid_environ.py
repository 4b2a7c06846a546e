"""/proc/PID/environ and the like of a process of the host: secrets that it was started with."""

from __future__ import annotations

from tests.escape.attempts import of_the_client, on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "its environment": "read(f'/proc/{pid}/environ')",
        "its arguments": "read(f'/proc/{pid}/cmdline')",
        "its descriptors": "os.listdir(f'/proc/{pid}/fd')",
        "the client's environment": "read(f'/proc/{GIVEN[\"client\"]}/environ')",
    }
)


async def test_the_environment_of_a_process_of_the_host_is_not_read(inside: Inside) -> None:
    """Neither the witness's nor that of who started the sandbox."""
    await inside.expect(of_the_client(ATTEMPTS, inside.given["client"]), "ENOENT")
