"""/dev/fuse: file systems that a program serves, so that whoever looks at them waits for it."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import Inside

ATTEMPTS = opening("fuse", "cuse")


async def test_no_file_system_is_served(inside: Inside) -> None:
    """The node is not there. (gVisor has one, of its own kernel.)"""
    await inside.expect(ATTEMPTS, "ENOENT", gvisor={"/dev/fuse": "done"})
