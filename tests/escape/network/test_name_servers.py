"""Name servers: questions whose names are the message."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a name server": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    "the host's own": "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "s.connect(('127.0.0.53', 53)); s.send(b'x'); s.send(b'x')",
    "a name, looked up": """
import socket
try:
    said = socket.getaddrinfo('example.org', 80)
except socket.gaierror:
    said = 'no name'
""",
}


async def test_no_name_is_looked_up(inside: Inside) -> None:
    """There is no way to a server of names."""
    await inside.expect(ATTEMPTS, "ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH", "no name")
