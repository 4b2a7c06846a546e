"""User namespaces in the sandbox: root of one reaches kernel code that was never meant for users."""

from __future__ import annotations

from tests.escape.conftest import Inside
from tests.escape.namespaces.kinds import BORN

FLAGS = {"user": 0x10000000, "user and mnt at once": 0x10020000, "user and net at once": 0x50000000}
ATTEMPTS = {
    **{f"unshare {kind}": f"call('unshare', {flag})" for kind, flag in FLAGS.items()},
    **{f"a child in a new {kind}": BORN.format(flag) for kind, flag in FLAGS.items()},
}
GVISOR = dict.fromkeys(ATTEMPTS, "done")


async def test_no_user_namespace_is_made(inside: Inside) -> None:
    """Neither alone, nor with others in one call."""
    await inside.expect(ATTEMPTS, "EPERM", gvisor=GVISOR)
