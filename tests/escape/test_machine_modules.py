"""Drivers for the machine's kernel: loading one, having one loaded, taking one away."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, Inside

pytestmark = AT_MACHINES

ATTEMPTS = {
    "from memory": "import ctypes; call('init_module', ctypes.create_string_buffer(b'\\x7fELF' + bytes(60)), 64, b'')",
    "from a file": """
file = os.memfd_create('x')
os.write(file, b'\\x7fELF' + bytes(60))
call('finit_module', file, b'', 0)
""",
    "taken away": "call('delete_module', b'virtio_console', 0x800)",
    "by a file system": "call('mount', b'none', b'/mnt', b'btrfs', 0, 0)",
    "by a line discipline": "import fcntl, struct; fcntl.ioctl(os.openpty()[1], 0x5423, struct.pack('i', 15))",
    "by an interface's name": "import fcntl, socket; fcntl.ioctl(socket.socket(), 0x8933, b'virtio_net' + bytes(30))",
    "by a protocol": "import socket; socket.socket(2, 5, 132)",
    "by a program's format": """
open(f'/tmp/f{os.getuid()}', 'wb').write(b'\\1\\2\\3\\4\\5\\6\\7\\10' * 32)
os.chmod(f'/tmp/f{os.getuid()}', 0o755)
os.execv(f'/tmp/f{os.getuid()}', ['x'])
""",
    "the program that loads them": "write('/proc/sys/kernel/modprobe', '/tmp/mine')",
    "what is loaded with what": "os.listdir('/sys/module')",
}


async def test_no_driver_comes_or_goes(inside: Inside) -> None:
    """The kernel has those with which it started."""
    before = (await inside.box.run("cut -d' ' -f1 /proc/modules")).stdout
    assert "virtio_console" in before
    await inside.expect(
        ATTEMPTS, "EPERM", "EACCES", "ENOSYS", "EROFS", "ENOENT", "ENODEV", "ENOEXEC", "EAFNOSUPPORT", "ENOTTY"
    )
    assert (await inside.box.run("cut -d' ' -f1 /proc/modules")).stdout == before
