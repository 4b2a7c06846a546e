"""/proc/PID/mem, maps, auxv and stack of the guest: its memory, and where what is in it."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest(
    {
        "open its memory": "os.open(f'/proc/{pid}/mem', os.O_RDWR)",
        "its memory map": "read(f'/proc/{pid}/maps')",
        "its auxiliary vector": "read(f'/proc/{pid}/auxv')",
        "its stack": "read(f'/proc/{pid}/stack')",
    }
)
GVISOR = dict.fromkeys(("its memory map", "its auxiliary vector"), "worked on 1")


async def test_the_memory_of_the_guest_is_not_opened(inside: Inside) -> None:
    """Nor is it told how it is laid out. (gVisor tells that of the first process.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor=GVISOR)
