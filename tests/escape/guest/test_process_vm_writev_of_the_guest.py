"""process_vm_readv, process_vm_writev: the guest's memory, by a call."""

from __future__ import annotations

from tests.escape.attempts import ADDRESSES, on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest(
    {
        "read its memory": ADDRESSES + "call('process_vm_readv', pid, v, 1, v, 1, 0)",
        "write its memory": ADDRESSES + "call('process_vm_writev', pid, v, 1, v, 1, 0)",
    }
)


async def test_the_memory_of_the_guest_is_not_reached(inside: Inside) -> None:
    """Neither read nor written."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES")
