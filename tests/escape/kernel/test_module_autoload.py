"""Having the kernel load a module: by a file system, a protocol, a line discipline, the format of a program."""

from __future__ import annotations

from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    "by a file system": "call('mount', b'none', b'/mnt', b'btrfs', 0, 0)",
    "by a line discipline": "import fcntl, struct; fcntl.ioctl(os.openpty()[1], 0x5423, struct.pack('i', 15))",
    "by an interface's name": "import fcntl, socket; fcntl.ioctl(socket.socket(), 0x8933, b'virtio_net' + bytes(30))",
    "by a protocol": "import socket; socket.socket(2, 5, 132)",
    "by a protocol above TCP": "import socket; socket.socket().setsockopt(6, 31, b'tls')",
    "by a program's format": """
open(f'/tmp/f{os.getuid()}', 'wb').write(b'\\1\\2\\3\\4\\5\\6\\7\\10' * 32)
os.chmod(f'/tmp/f{os.getuid()}', 0o755)
os.execv(f'/tmp/f{os.getuid()}', ['x'])
""",
}
REFUSED = ("EPERM", "EACCES", "ENOENT", "ENODEV", "ENOEXEC", "EAFNOSUPPORT", "ENOSYS", "ENOTTY", "ENOTCONN")


async def test_nothing_is_loaded_for_the_asking(inside: Inside) -> None:
    """What is not there is not there. (gVisor takes the name of a protocol above TCP, and has none.)"""
    before = (await inside.box.run("cut -d' ' -f1 /proc/modules")).stdout
    await inside.expect(ATTEMPTS, *REFUSED, gvisor={"by a protocol above TCP": "done"})
    if inside.host.runtime_name == "microvm":
        assert (await inside.box.run("cut -d' ' -f1 /proc/modules")).stdout == before
