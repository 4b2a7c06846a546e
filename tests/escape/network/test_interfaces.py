"""Interfaces of the network: an address, a state, one more."""

from __future__ import annotations

from tests.escape.attempts import NET
from tests.escape.conftest import Inside

ATTEMPTS = {
    "an address for an interface": NET
    + "fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes([10, 0, 0, 1])))",
    "an interface, up": NET + "fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0))",
    "a new interface": """
import socket, struct
s = socket.socket(16, 3, 0)
body = struct.pack('BBHiII', 0, 0, 0, 0, 0, 0) + struct.pack('HH8s', 12, 3, b'dummy9')
s.send(struct.pack('IHHII', 16 + len(body), 16, 0x605, 1, 0) + body)
error = struct.unpack_from('i', s.recv(4096), 16)[0]
raise OSError(-error, '')
""",
}


async def test_no_interface_is_changed_or_made(inside: Inside) -> None:
    """Loopback is what there is, and what there stays."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES")
    assert (await inside.box.run("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == ["lo"]
