"""Abstract sockets of the host, which have a name and no file (CVE-2020-15257: containerd's)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "its abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0' + GIVEN['abstract'])",
    "a datagram to it": "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "s.sendto(b'x', '\\0' + GIVEN['abstract'])",
    "its name, in the list of all": "said = GIVEN['abstract'] in read('/proc/net/unix') or 'none'",
}


async def test_no_abstract_socket_of_the_host_is_there(inside: Inside) -> None:
    """Nobody listens by that name inside, and the witness is not called."""
    await inside.expect(ATTEMPTS, "ECONNREFUSED", "none")
