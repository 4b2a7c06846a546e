"""AF_ALG: the kernel's ciphers, which it loads for the asking, with a history of holes (CVE-2017-13215)."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import Inside

ATTEMPTS = {
    "the kernel's ciphers": opening_socket(38, 5, 0),
    "one by its name": "import socket; socket.socket(38, 5, 0).bind(('hash', 'sha256'))",
}


async def test_no_cipher_is_loaded(inside: Inside) -> None:
    """There is no such family of sockets."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM")
