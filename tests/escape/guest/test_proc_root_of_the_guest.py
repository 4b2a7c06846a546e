"""/proc/PID/root, cwd, exe and ns of the guest: a tree, a program and namespaces that could be others."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest(
    {
        "its root": "os.listdir(f'/proc/{pid}/root/')",
        "its working directory": "os.listdir(f'/proc/{pid}/cwd/')",
        "its program": "os.open(f'/proc/{pid}/exe', os.O_RDONLY)",
        "its namespaces": "os.open(f'/proc/{pid}/ns/mnt', os.O_RDONLY)",
    }
)


async def test_no_link_of_the_guests_is_followed(inside: Inside) -> None:
    """Not by its own user either. (gVisor shows its namespaces, which are the sandbox's.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor={"its namespaces": "worked on 1"})
