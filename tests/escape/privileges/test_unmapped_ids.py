"""Ids that the sandbox was not given: being somebody of the host's, and giving files to somebody."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a user that is not mapped": "os.setresuid(70000, 70000, 70000)",
    "a group that is not mapped": "os.setresgid(70000, 70000, 70000)",
    "a file given to a user that is not mapped": "open('/tmp/mine', 'w').close(); os.chown('/tmp/mine', 70000, 70000)",
}
GVISOR = dict.fromkeys(("a user that is not mapped", "a group that is not mapped"), "done")


async def test_nobody_becomes_who_is_not_there(inside: Inside) -> None:
    """There are the users of the sandbox's own range, and no others. (gVisor's users are its own.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EINVAL", "EACCES", gvisor=GVISOR)
