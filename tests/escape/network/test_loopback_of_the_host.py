"""Servers on the host's loopback, which trust whoever comes from there."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "its loopback": "import socket; socket.create_connection(('127.0.0.1', GIVEN['port']), 5)",
    "its loopback, by another name": "import socket; socket.create_connection(('::ffff:127.0.0.1', GIVEN['port']), 5)",
    "any address": "import socket; socket.create_connection(('0.0.0.0', GIVEN['port']), 5)",
}


async def test_the_hosts_loopback_is_another(inside: Inside) -> None:
    """The witness, who listens there, is not called."""
    await inside.expect(ATTEMPTS, "ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH")
