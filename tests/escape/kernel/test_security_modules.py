"""AppArmor, SELinux, lockdown: turning off what confines, and reading what does."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/sys/module/apparmor/parameters/enabled", "/sys/fs/selinux/enforce"),
    **reading("/sys/kernel/security/lockdown"),
}


async def test_no_security_module_is_reached(inside: Inside) -> None:
    """Their files are not there."""
    await inside.expect(ATTEMPTS, "empty", *CLOSED)
