"""PR_SET_MM_EXE_FILE: another file behind /proc/self/exe, for whoever trusts that."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "another file behind /proc/self/exe": "call('prctl', 35, 13, os.open('/bin/sh', 0), 0, 0)",
}


async def test_a_program_cannot_pass_for_another(inside: Inside) -> None:
    """What runs is what the link says."""
    await inside.expect(ATTEMPTS, "EPERM", "EINVAL", "EACCES")
