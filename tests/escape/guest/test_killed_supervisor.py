"""Killing the process of the guest's that watches a command, so that a failure goes unseen."""

from __future__ import annotations

import anyio
from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest({"kill": "os.kill(pid, 9)"})


async def test_killing_a_supervisor_forges_nothing(inside: Inside) -> None:
    """Root inside can kill a command's supervisor: it loses its own command, and no failure becomes a success."""
    if inside.user is not None:
        assert await inside.outcomes(ATTEMPTS) == {"kill": "EPERM"}
        return
    async with inside.open_box() as box:
        with anyio.fail_after(60):
            wanted = await box.run("kill -9 $PPID; sleep 5; exit 3", timeout=10)
            assert not wanted.ok
        assert (await box.run("echo on")).stdout == "on\n"
