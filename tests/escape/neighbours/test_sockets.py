"""Servers of another sandbox: an abstract socket, a port, a port for datagrams."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

ATTEMPTS = {
    "an abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0neighbour')",
    "a port": "import socket; socket.create_connection(('127.0.0.1', 4714), 5)",
    "a datagram": """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(('127.0.0.1', 4715)); udp.send(b'x'); udp.send(b'x')
""",
}


@pytest.mark.usefixtures("neighbour")
async def test_servers_of_a_neighbour_are_not_there(inside: Inside) -> None:
    """Its names and ports are its own, and nobody came, as it says at its end."""
    await inside.expect(ATTEMPTS, "ECONNREFUSED")
