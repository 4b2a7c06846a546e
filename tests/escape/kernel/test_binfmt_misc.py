"""binfmt_misc: the program that runs others, in their name and with their rights, for a format that one registers."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/binfmt_misc/status"),
    "mounted": "call('mount', b'none', b'/mnt', b'binfmt_misc', 0, 0)",
}


async def test_no_format_of_programs_is_registered(inside: Inside) -> None:
    """It is not mounted, and cannot be."""
    await inside.expect(ATTEMPTS, *CLOSED)
