"""Packet sockets: everything that goes by on the wire, and whatever one likes to put there (CVE-2020-14386)."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import Inside

ATTEMPTS = {
    "packets, raw": opening_socket(17, 3, 0x300),
    "packets, cooked": opening_socket(17, 2, 0x300),
    "express data path": opening_socket(44, 3, 0),
}


async def test_no_packet_is_seen_or_sent(inside: Inside) -> None:
    """There is no such family of sockets."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM")
