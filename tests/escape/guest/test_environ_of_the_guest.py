"""/proc/PID/environ of the guest: what it was started with."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    **on_the_guest({"its environment": "read(f'/proc/{pid}/environ')"}),
    **reading("/proc/1/environ"),
}
GVISOR = {"its environment": "worked on 1", "/proc/1/environ": "HOME=/root"}


async def test_the_environment_of_the_guest_is_not_read(inside: Inside) -> None:
    """Neither by root nor by others. (At gVisor it is read, and has nothing in it but a home.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor=GVISOR)
