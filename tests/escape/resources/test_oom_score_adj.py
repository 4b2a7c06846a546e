"""oom_score_adj: being spared when memory runs out, so that others are killed."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "spared when memory runs out": "write('/proc/self/oom_score_adj', '-1000')",
    "by the older name": "write('/proc/self/oom_adj', '-17')",
}
GVISOR = {"spared when memory runs out": "done"}


async def test_nobody_is_spared(inside: Inside) -> None:
    """The score that it was given can only get worse. (gVisor's is told to nobody.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor=GVISOR)
