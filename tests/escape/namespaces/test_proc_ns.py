"""/proc/PID/ns of a process of the host: a descriptor of its namespaces, to be entered or mounted."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "its namespaces": "os.open(f'/proc/{pid}/ns/mnt', os.O_RDONLY)",
        "its user namespace": "os.open(f'/proc/{pid}/ns/user', os.O_RDONLY)",
        "which they are": "os.readlink(f'/proc/{pid}/ns/net')",
    }
)


async def test_namespaces_of_the_host_are_not_there(inside: Inside) -> None:
    """They have no name inside."""
    await inside.expect(ATTEMPTS, "ENOENT")
