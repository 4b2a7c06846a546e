"""A higher priority, at the processor and at the disk."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a higher priority": "os.setpriority(os.PRIO_PROCESS, 0, -20)",
    "the disk first": "call('ioprio_set', 1, 0, 1 << 13)",
}


async def test_no_more_than_its_share(inside: Inside) -> None:
    """What would put it before the host's own programs is refused. (gVisor's priorities are among its own.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor={"a higher priority": "done"})
