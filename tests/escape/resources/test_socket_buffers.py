"""Sockets that nobody reads, full of what was sent to them."""

from __future__ import annotations

import pytest
from tests.escape.conftest import HOSTS_KERNEL, WHOEVER, Inside
from tests.escape.resources.holding import counts

pytestmark = [HOSTS_KERNEL, WHOEVER]

ATTEMPT = """
def one():
    held.append(socket.socketpair())
    held[-1][0].setblocking(False)
    held[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    sent = 0
    try:
        while sent < MIB:
            sent += held[-1][0].send(BLOCK[:65536])
    except BlockingIOError:
        pass
    return sent / MIB
said = f'held {fill(one)}'
"""


async def test_what_nobody_reads_counts(inside: Inside) -> None:
    """As memory of the sandbox."""
    if inside.host.runtime_name == "microvm":
        pytest.skip("its kernel neither refuses nor kills, and is busy until time is up: docs/threat-model.md")
    await counts(inside, ATTEMPT)
