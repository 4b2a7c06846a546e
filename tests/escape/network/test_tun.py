"""/dev/net/tun: an interface that a program serves."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a tunnel": "os.open('/dev/net/tun', os.O_RDWR)",
    "an interface of its own": """
import fcntl, struct
fcntl.ioctl(os.open('/dev/net/tun', os.O_RDWR), 0x400454CA, struct.pack('16sh22x', b'mine', 0x1001))
""",
}


async def test_no_tunnel_is_dug(inside: Inside) -> None:
    """The node is not there. (gVisor has one, of its own kernel, and makes no interface of it.)"""
    await inside.expect(ATTEMPTS, "ENOENT", gvisor={"a tunnel": "done"})
    assert (await inside.box.run("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == ["lo"]
