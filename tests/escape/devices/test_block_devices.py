"""Disks, and what makes disks of other things."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    **opening("sda", "vda", "nvme0n1", "nbd0"),
    **{
        f"/dev/{name}, to read": f"os.open('/dev/{name}', os.O_RDONLY)"
        for name in ("vda", "vdb", "vdc", "loop0", "ram0", "pmem0")
    },
    "written": "os.open('/dev/vda', os.O_WRONLY)",
    **opening("loop-control", "mapper/control"),
    "by the bus": "os.listdir('/sys/block')",
}


async def test_no_disk_is_there(inside: Inside) -> None:
    """Neither the host's nor a machine's, nor a way to make one. (gVisor's list of them is empty.)"""
    await inside.expect(ATTEMPTS, "ENOENT", "EPERM", "EACCES", gvisor={"by the bus": "done"})
