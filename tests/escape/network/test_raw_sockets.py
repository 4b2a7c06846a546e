"""Raw sockets: datagrams in the name of others, and all that come in."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import Inside

ATTEMPTS = {
    "raw IP": opening_socket(2, 3, 255),
    "raw ICMP": opening_socket(2, 3, 1),
    "raw ICMPv6": opening_socket(10, 3, 58),
    "raw TCP": opening_socket(2, 3, 6),
}


async def test_no_socket_is_raw(inside: Inside) -> None:
    """For root neither."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM")
