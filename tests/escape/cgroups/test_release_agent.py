"""release_agent: the program that the host's root starts when a group is left by its last process (CVE-2022-0492)."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/rdma/release_agent"),
    "in a hierarchy of its own": """
call('unshare', 0x12000000)
call('mount', b'c', b'/mnt', b'cgroup', 0, b'rdma')
os.makedirs('/mnt/mine', exist_ok=True)
write('/mnt/mine/notify_on_release', '1')
write('/mnt/release_agent', '/tmp/mine')
""",
}


async def test_no_program_is_named_to_the_host(inside: Inside) -> None:
    """Where it would be written nothing is mounted, and nothing can be."""
    await inside.expect(ATTEMPTS, *CLOSED)
