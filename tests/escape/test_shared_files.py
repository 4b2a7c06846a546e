"""What a sandbox shares with the host by the caller's own wish: a volume. It can read it, and that is all."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
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
    "a lease on it": "import fcntl; fcntl.fcntl(os.open('/vol/file', 0), 1024, 0)",
    "notes of what is done in it": "import fcntl; fcntl.fcntl(os.open('/vol', 0), 1026, 2)",
}


async def test_a_volume_is_read_and_nothing_else(inside: Inside, tmp_path: Path) -> None:
    """Not written by any way, not locked against the host's own programs, and no step leads up out of it."""
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    shared = tmp_path / "shared"
    shared.mkdir()
    file = shared / "file"
    file.write_text("shared")
    file.chmod(0o666)
    before = file.stat(), os.listxattr(file)
    async with inside.open_box(volumes=(Volume(str(shared), "/vol"),)) as box:
        told = await inside.outcomes(ATTEMPTS, box)
        assert {name for name, outcome in told.items() if outcome == "done"} == set(), told
        held = await box.start(
            "exec python3 -I -S -c 'import fcntl, os, signal, time; signal.signal(29, signal.SIG_IGN)\n"
            'fcntl.fcntl(os.open("/vol/file", 0), 1024, 0)\ntime.sleep(60)\'',
            user=inside.user,
        )
        with anyio.fail_after(30):
            await anyio.to_thread.run_sync(lambda: file.open("r+").close())
        assert not (await held.kill()).ok
    assert (file.stat(), os.listxattr(file)) == before
    assert [path.name for path in shared.iterdir()] == ["file"]


SOCKETS = {
    "connect": "import socket; socket.socket(socket.AF_UNIX).connect('/vol/socket')",
}


async def test_a_socket_in_a_volume_is_open_to_whom_its_mode_lets(inside: Inside, tmp_path: Path) -> None:
    """Read-only does not close it (an engine's, say): the sandbox's root owns it, and gets through; others do not."""
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    (tmp_path / "shared").mkdir()
    path = tmp_path / "shared/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        async with inside.open_box(volumes=(Volume(str(tmp_path / "shared"), "/vol"),)) as box:
            told = await inside.outcomes(SOCKETS, box)
    reached = "done" if inside.host.runtime_name != "microvm" else "ECONNREFUSED"  # a copy, which nobody serves
    assert told == {"connect": "EACCES" if inside.user else reached}
