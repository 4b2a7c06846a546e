"""Changing what is mounted where: the old call, the new ones, and moving the root."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a file system in memory": "call('mount', b'none', b'/mnt', b'tmpfs', 0, 0)",
    "another view of processes": "call('mount', b'proc', b'/mnt', b'proc', 0, 0)",
    "the devices of the host": "call('mount', b'none', b'/mnt', b'devtmpfs', 0, 0)",
    "the kernel's objects": "call('mount', b'none', b'/mnt', b'sysfs', 0, 0)",
    "control groups, version 1": "call('mount', b'none', b'/mnt', b'cgroup', 0, b'memory')",
    "control groups, version 2": "call('mount', b'none', b'/mnt', b'cgroup2', 0, 0)",
    "an overlay of its own": "call('mount', b'none', b'/mnt', b'overlay', 0, b'lowerdir=/etc:/usr')",
    "the root, bound elsewhere": "call('mount', b'/', b'/mnt', b'none', 0x5000, 0)",
    "a block device": "call('mount', b'/dev/vda', b'/mnt', b'ext4', 0, 0)",
    "a part of /proc, writable again": "call('mount', b'none', b'/proc/sys', b'none', 0x1020, 0)",
    "its root, with devices": "call('mount', b'none', b'/', b'none', 0x20, 0)",
    "mounts that spread": "call('mount', b'none', b'/', b'none', 0x104000, 0)",
    "what masks /proc, gone": "call('umount2', b'/proc/keys', 2)",
    "a lazy end of /proc": "call('umount2', b'/proc', 2)",
    "a context of a file system": "call('fsopen', b'tmpfs', 0)",
    "a context, picked": "call('fspick', -100, b'/', 0)",
    "a tree, cloned": "call('open_tree', -100, b'/', 1)",
    "a tree, moved": "call('move_mount', -100, b'/usr', -100, b'/mnt', 0)",
    "attributes of a mount": "import ctypes; call('mount_setattr', -100, b'/', 0, ctypes.create_string_buffer(32), 32)",
    "another root": "call('pivot_root', b'/', b'/mnt')",
    "quotas": "call('quotactl', 0x80000200, b'/dev/vda', 0, 0)",
    "swap space": "call('swapon', b'/etc/passwd', 0)",
}


async def test_mounting_is_refused(inside: Inside) -> None:
    """The sandbox's table of mounts is the one that it started with, to the last line."""
    before = await inside.box.read("/proc/self/mountinfo")
    await inside.expect(ATTEMPTS, "EPERM")
    assert await inside.box.read("/proc/self/mountinfo") == before
