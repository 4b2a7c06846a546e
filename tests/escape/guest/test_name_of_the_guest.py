"""/proc/PID/comm of the guest: another name, for whoever goes by names."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest({"its name": "write(f'/proc/{pid}/comm', 'x')"})


async def test_the_guest_keeps_its_name(inside: Inside) -> None:
    """It is not another's to write."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EINVAL")
