"""mount(2): file systems of one's own, which show what others do not, or run code of the kernel on hostile bytes."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a file system in memory": "call('mount', b'none', b'/mnt', b'tmpfs', 0, 0)",
    "another view of processes": "call('mount', b'proc', b'/mnt', b'proc', 0, 0)",
    "the devices of the host": "call('mount', b'none', b'/mnt', b'devtmpfs', 0, 0)",
    "the kernel's objects": "call('mount', b'none', b'/mnt', b'sysfs', 0, 0)",
    "a block device": "call('mount', b'/dev/vda', b'/mnt', b'ext4', 0, 0)",
    "the disk of a machine": "call('mount', b'/dev/vda', b'/mnt', b'erofs', 1, 0)",
    "the kernel's debugging": "call('mount', b'none', b'/mnt', b'debugfs', 0, 0)",
    "programs of BPF": "call('mount', b'none', b'/mnt', b'bpf', 0, 0)",
    "a file system of a program's own": "call('mount', b'none', b'/mnt', b'fuse', 0, b'fd=3,rootmode=40000,user_id=0')",
}


async def test_mounting_is_refused(inside: Inside) -> None:
    """Whatever it is."""
    await inside.expect(ATTEMPTS, "EPERM")
