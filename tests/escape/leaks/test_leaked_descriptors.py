"""Descriptors that somebody forgot to close (CVE-2024-21626 and its kin): what a command finds open at its start."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, Inside

pytestmark = HOSTS_KERNEL

KEPT = {
    "ours": """
said = []
for fd in os.listdir('/proc/self/fd'):
    try:
        found = os.readlink(f'/proc/self/fd/{fd}')
    except OSError:
        continue
    if not found.startswith(('pipe:', '/dev/null', '/proc/')):
        said.append(found)
""",
    "what pid 1 started with": "said = read('/proc/1/environ')",
}


async def test_a_command_starts_with_its_own_descriptors(inside: Inside) -> None:
    """What launcher and runtime hold (sockets of other sandboxes, directories, groups) is seen by no command."""
    told = await inside.outcomes(KEPT, inside.box)
    assert told == {"ours": "[]", "what pid 1 started with": "EACCES"}
