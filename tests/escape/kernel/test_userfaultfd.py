"""userfaultfd(2): the kernel stands still in the middle of a call for as long as the attacker likes."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing, opening
from tests.escape.conftest import Inside

ATTEMPTS = {
    "with the kernel's own faults": "call('userfaultfd', 0o2000000)",
    "of user mode alone": "call('userfaultfd', 0o2000000 | 1)",
    **opening("userfaultfd"),
    **changing("/proc/sys/vm/unprivileged_userfaultfd"),
}


async def test_no_fault_is_handled_by_the_attacker(inside: Inside) -> None:
    """By none of its interfaces."""
    await inside.expect(ATTEMPTS, *CLOSED)
