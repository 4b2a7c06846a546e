"""What a sandbox shares with the host by the caller's own wish: a volume. It can read it, and that is all."""

from __future__ import annotations

import os
from pathlib import Path

from tests.escape.conftest import Inside

from proofbox.model.spec import Volume

ATTEMPTS = {
    "written": "write('/vol/file', 'x')",
    "cut": "os.truncate('/vol/file', 0)",
    "its mode": "os.chmod('/vol/file', 0o777)",
    "its owner": "os.chown('/vol/file', os.getuid(), os.getgid())",
    "its time": "os.utime('/vol/file', (1, 1))",
    "its attributes": "os.setxattr('/vol/file', 'user.mine', b'1')",
    "removed": "os.unlink('/vol/file')",
    "renamed": "os.rename('/vol/file', '/vol/other')",
    "a file in it": "open('/vol/new', 'w')",
    "a directory in it": "os.mkdir('/vol/new')",
    "a link in it": "os.symlink('/etc', '/vol/new')",
    "a hard link out of it": "os.link('/vol/file', '/tmp/out')",
    "a device in it": "os.mknod('/vol/new', 0o60666, os.makedev(8, 0))",
    "written by its descriptor": "fd = os.open('/vol/file', 0); os.open(f'/proc/self/fd/{fd}', os.O_RDWR)",
    "written through memory": "import mmap; mmap.mmap(os.open('/vol/file', 0), 1, mmap.MAP_SHARED, mmap.PROT_WRITE)",
    "its flags": "import fcntl, struct; fcntl.ioctl(os.open('/vol/file', 0), 0x40086602, struct.pack('l', 16))",
    "mounted again": "call('mount', b'none', b'/vol', b'none', 0x1020, 0)",
    "the directory above it": "os.listdir('/vol/..' + GIVEN['file'])",
    "notes of what is done in it": "import fcntl; fcntl.fcntl(os.open('/vol', 0), 1026, 2)",
}


async def test_a_volume_is_read_and_nothing_else(inside: Inside, shared: Path) -> None:
    """Not written by any way, and no step leads up out of it."""
    file = shared / "file"
    before = file.stat(), os.listxattr(file)
    async with inside.open_box(volumes=(Volume(str(shared), "/vol"),)) as box:
        told = await inside.outcomes(ATTEMPTS, box)
        assert {name for name, outcome in told.items() if outcome == "done"} == set(), told
    assert (file.stat(), os.listxattr(file)) == before
    assert [path.name for path in shared.iterdir()] == ["file"]
