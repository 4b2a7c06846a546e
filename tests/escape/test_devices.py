"""Devices: making their nodes, finding them, changing those that are there."""

from __future__ import annotations

from tests.escape.conftest import Inside

NODES = {
    "the disk of the host": "os.mknod(f'/tmp/n{os.getuid()}', 0o60666, GIVEN['device'])",
    "a disk": "os.mknod(f'/tmp/n{os.getuid()}', 0o60666, os.makedev(8, 0))",
    "memory": "os.mknod(f'/tmp/n{os.getuid()}', 0o20666, os.makedev(1, 1))",
    "the kernel's log": "os.mknod(f'/tmp/n{os.getuid()}', 0o20666, os.makedev(1, 11))",
    "a node in /dev": "os.mknod(f'/dev/n{os.getuid()}', 0o60666, os.makedev(8, 0))",
    "a node in /dev/shm": "os.mknod(f'/dev/shm/n{os.getuid()}', 0o60666, os.makedev(8, 0))",
    **{
        f"/dev/{name}": f"os.open('/dev/{name}', os.O_RDWR)"
        for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "kvm", "fuse", "loop-control", "mapper/control",
                     "cpu/0/msr", "vhost-net", "net/tun", "userfaultfd", "watchdog", "rtc0", "uinput", "dri/card0",
                     "nvidia0", "snapshot", "hwrng", "vsock", "vcs", "tty0", "tty1", "ttyS0", "console", "initctl")
    },
    "the mode of a device": "os.chmod('/dev/null', 0o600)",
    "the owner of a device": "os.chown('/dev/zero', 0, 0)",
    "a device, gone": "os.unlink('/dev/null')",
    "a device, replaced": "open(f'/tmp/f{os.getuid()}', 'w').close(); os.rename(f'/tmp/f{os.getuid()}', '/dev/zero')",
    "attributes of a device": "os.setxattr('/dev/null', 'user.mine', b'1')",
    "entropy": "import fcntl; fcntl.ioctl(os.open('/dev/urandom', os.O_RDWR), 0x5204, 0)",
}  # fmt: skip


async def test_no_device_but_the_harmless_ones(inside: Inside) -> None:
    """No node that is made works, none that is there reaches hardware, and those that are there stay as they are."""
    await inside.expect(NODES, "EPERM", "EACCES", "ENOENT", "ENXIO", "EBUSY", "EXDEV", "ENODEV")


OWNERS = """
import os
for name in ('null', 'zero', 'full', 'random', 'urandom', 'tty'):
    print(os.stat('/dev/' + name).st_uid)
"""


async def test_no_device_of_the_host_is_given_to_the_sandbox(inside: Inside) -> None:
    """crun makes its container the owner of its standard descriptors: once that was the host's /dev/null."""
    async with inside.open_box() as box:
        owners = (await box.run(["python3", "-I", "-S", "-c", OWNERS])).stdout.split()
    assert set(owners) == {"65534"}  # nobody whom the sandbox could be


FILES = {
    name: f"import fcntl; fcntl.ioctl(os.open('/usr/bin', 0), {number}, bytearray(64))"
    for name, number in {
        "a file system, frozen": 0xC0045877,
        "a file system, trimmed": 0xC0185879,
        "a file system, shut down": 0x8004587D,
        "a file system, resized": 0x40086610,
        "a block device's size": 0x80081272,
        "blocks, discarded": 0x1277,
        "a partition table, read again": 0x125F,
        "a SCSI command": 0x2285,
        "an encryption key": 0xC0506617,
    }.items()
}


async def test_nothing_is_asked_of_the_disk_below(inside: Inside) -> None:
    """Whoever holds a directory of the host's /usr can ask it nothing but what files are asked."""
    await inside.expect(FILES, "EPERM", "ENOTTY", "EOPNOTSUPP", "EACCES", "EINVAL")
