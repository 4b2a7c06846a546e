"""Memory of the kernel's own: pairs of sockets, as many as there is room for."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import goes_off

BOMB = "exec python3 -S -c 'import socket\nall = []\nwhile True: all.append(socket.socketpair())'"


@WHOEVER
async def test_objects_of_the_kernel_fill_the_sandbox_and_no_more(inside: Inside) -> None:
    """Their memory counts as the sandbox's, where their number does not end it before."""
    await goes_off(inside, "memory", BOMB)
