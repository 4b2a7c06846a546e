"""Processes of another sandbox, by the numbers that they have on the host, and by what they run."""

from __future__ import annotations

from tests.escape.attempts import ADDRESSES
from tests.escape.conftest import Inside

ATTEMPTS = {
    "its process": "os.kill(GIVEN['neighbour'], 9)",
    "its program": "said = [pid for pid in others() if 'ready' in read(f'/proc/{pid}/cmdline')] or 'none'",
    "its memory": ADDRESSES + "call('process_vm_readv', GIVEN['neighbour'], v, 1, v, 1, 0)",
    "its memory, as a file": "os.open(f'/proc/{GIVEN[\"neighbour\"]}/mem', os.O_RDWR)",
    "its environment": "read(f'/proc/{GIVEN[\"neighbour\"]}/environ')",
    "traced": "call('ptrace', 0x4206, GIVEN['neighbour'], 0, 0)",
}


async def test_processes_of_a_neighbour_are_not_there(inside: Inside, neighbours_pid: int) -> None:
    """It cannot be signalled, seen, or read."""
    await inside.expect(ATTEMPTS, "ESRCH", "ENOENT", "none", neighbour=neighbours_pid)
