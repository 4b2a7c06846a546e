"""kexec: another kernel in the place of this one."""

from __future__ import annotations

from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    "another kernel": "call('kexec_load', 0, 0, 0, 0)",
    "another kernel, from a file": "call('kexec_file_load', os.open('/bin/sh', 0), -1, 0, 0, 0)",
    "one for when it crashes": "call('kexec_load', 0, 0, 0, 1)",
}


async def test_no_other_kernel_is_loaded(inside: Inside) -> None:
    """By neither call."""
    await inside.expect(ATTEMPTS, "EPERM")
