"""mknod(2): nodes of devices, the disk of the host among them."""

from __future__ import annotations

from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    "the disk of the host": "os.mknod(f'/tmp/n{os.getuid()}', 0o60666, GIVEN['device'])",
    "a disk": "os.mknod(f'/tmp/n{os.getuid()}', 0o60666, os.makedev(8, 0))",
    "the disk of a machine": "os.mknod(f'/tmp/d{os.getuid()}', 0o60666, os.makedev(254, 0))",
    "memory": "os.mknod(f'/tmp/n{os.getuid()}', 0o20666, os.makedev(1, 1))",
    "the kernel's log": "os.mknod(f'/tmp/n{os.getuid()}', 0o20666, os.makedev(1, 11))",
    "a node in /dev": "os.mknod(f'/dev/n{os.getuid()}', 0o60666, os.makedev(8, 0))",
    "a node in /dev/shm": "os.mknod(f'/dev/shm/n{os.getuid()}', 0o60666, os.makedev(8, 0))",
}
GVISOR = {"a node in /dev": "done"}


async def test_no_node_of_a_device_is_made(inside: Inside) -> None:
    """Nowhere. (gVisor makes one in its own /dev, behind which there is no device.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor=GVISOR)
