"""Ways out of the network: a route, a mark by which others are taken, somebody else's address."""

from __future__ import annotations

from tests.escape.attempts import NET
from tests.escape.conftest import Inside

ATTEMPTS = {
    "a route": NET + "fcntl.ioctl(s, 0x890b, bytes(120))",
    "a mark that routes by": NET + "s.setsockopt(socket.SOL_SOCKET, 36, 1)",
    "another's address": NET + "s.setsockopt(0, 19, 1)",
}
GVISOR = {"a mark that routes by": "done", "another's address": "done"}


async def test_no_way_out_is_made(inside: Inside) -> None:
    """The table of routes stays as it is. (gVisor takes the options, and has nowhere to go.)"""
    before = (await inside.box.run("cat /proc/net/route")).stdout
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor=GVISOR)
    assert (await inside.box.run("cat /proc/net/route")).stdout == before
