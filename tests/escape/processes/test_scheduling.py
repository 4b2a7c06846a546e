"""The schedule of the host's processes: their processors, their priority, their place at the disk."""

from __future__ import annotations

from tests.escape.attempts import on_the_hosts
from tests.escape.conftest import Inside

ATTEMPTS = on_the_hosts(
    {
        "its processors": "os.sched_setaffinity(pid, {0})",
        "its priority": "os.setpriority(os.PRIO_PROCESS, pid, 19)",
        "its schedule": "os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))",
        "its place on the disk": "call('ioprio_set', 1, pid, 3 << 13)",
    }
)


async def test_a_process_of_the_host_keeps_its_place(inside: Inside) -> None:
    """It does not exist inside."""
    await inside.expect(ATTEMPTS, "ESRCH")


MANY = {
    "whoever has a user's name": "[os.setpriority(os.PRIO_USER, user, 19) for user in (os.getuid(), 0, 65534)]",
    "whoever is in a group of processes": "os.setpriority(os.PRIO_PGRP, 0, 19)",
}


async def test_many_means_many_inside(inside: Inside) -> None:
    """Whatever a call that names many reaches, the witness outside is as nice as before."""
    await inside.expect(MANY, "done", "ESRCH", "EPERM", "EACCES")
