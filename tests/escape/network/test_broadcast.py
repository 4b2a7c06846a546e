"""Broadcast and multicast: whoever is near hears it."""

from __future__ import annotations

from tests.escape.attempts import NET
from tests.escape.conftest import Inside

UDP = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
ATTEMPTS = {
    "everybody": NET
    + """
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.sendto(b'x', ('255.255.255.255', 9))
""",
    "a group": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.1', 9))",
    "a link-local neighbour": UDP.replace("AF_INET", "AF_INET6") + "s.sendto(b'x', ('fe80::1', 9, 0, 1))",
}


async def test_nobody_near_is_reached(inside: Inside) -> None:
    """There is no link to be near on. (gVisor sends to the last on its own loopback.)"""
    await inside.expect(
        ATTEMPTS, "ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH", gvisor={"a link-local neighbour": "done"}
    )
