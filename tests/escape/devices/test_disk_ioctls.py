"""Orders to the disk below a file: a directory of the host's /usr is a descriptor of its file system."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
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
    """It can ask it nothing but what files are asked."""
    await inside.expect(ATTEMPTS, "EPERM", "ENOTTY", "EOPNOTSUPP", "EACCES", "EINVAL")
