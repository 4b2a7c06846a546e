"""vsock: from a virtual machine to the one who runs it, past every network."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    "the machine's host": opening_socket(40, 1, 0),
    "the hypervisor": "import socket; socket.socket(40, 1, 0).connect((0, 1))",
}


async def test_the_host_of_the_machine_is_not_called(inside: Inside) -> None:
    """There is no such family of sockets."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM")
