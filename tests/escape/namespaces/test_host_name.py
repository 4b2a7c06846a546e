"""The name of the machine and of its domain."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname"),
    "by the call": "call('sethostname', b'mine', 4)",
    "its domain, by the call": "call('setdomainname', b'mine', 4)",
}
OPENED = {"/proc/sys/kernel/hostname opened again by its descriptor": "done"}
"""At gVisor, whose own it is."""


async def test_the_machine_keeps_its_name(inside: Inside) -> None:
    """Inside as outside."""
    await inside.expect(ATTEMPTS, *CLOSED, gvisor=OPENED)
