"""process_vm_readv, process_vm_writev: the memory of a process of the host, by a call."""

from __future__ import annotations

from tests.escape.attempts import ADDRESSES, on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "read its memory": ADDRESSES + "call('process_vm_readv', pid, v, 1, v, 1, 0)",
        "write its memory": ADDRESSES + "call('process_vm_writev', pid, v, 1, v, 1, 0)",
        "its pages, moved": "call('move_pages', pid, 0, 0, 0, 0, 0)",
    }
)


async def test_the_memory_of_a_process_of_the_host_is_not_reached(inside: Inside) -> None:
    """Neither read nor written."""
    await inside.expect(ATTEMPTS, "ESRCH", "EPERM")
