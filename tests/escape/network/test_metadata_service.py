"""The metadata service of a cloud, which gives its keys to whoever asks."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a metadata service": "import socket; socket.create_connection(('169.254.169.254', 80), 5)",
    "by IPv6": "import socket; socket.create_connection(('fd00:ec2::254', 80), 5)",
}


async def test_no_metadata_service_is_reached(inside: Inside) -> None:
    """There is no way to it."""
    await inside.expect(ATTEMPTS, "ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH")
