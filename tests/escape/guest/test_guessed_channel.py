"""Guessing the channel to the host: by number, by name, by port."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "sockets with names": """
said = [line.split()[7] for line in read('/proc/net/unix').splitlines()[1:] if len(line.split()) > 7]
""",
    "listening ports": "said = read('/proc/net/tcp').splitlines()[1:] + read('/proc/net/tcp6').splitlines()[1:]",
    "all descriptors": """
said = []
for fd in range(5, 1024):
    try:
        os.write(fd, bytes(12))
        said.append(fd)
    except OSError:
        pass
""",
    "names that it could have": """
import socket
said = []
for name in ('proofbox', 'proofbox-guest', 'guest', 'proofbox/guest', 'channel'):
    for address in ('\\0' + name, f'/run/{name}', f'/run/{name}.sock', f'/tmp/{name}', f'/dev/{name}'):
        try:
            socket.socket(socket.AF_UNIX).connect(address)
            said.append(address)
        except OSError:
            pass
""",
}


async def test_the_channel_is_not_guessed(inside: Inside) -> None:
    """It has neither a name nor a port, and no descriptor of a command leads to it."""
    await inside.expect(ATTEMPTS, "[]", gvisor=dict.fromkeys(ATTEMPTS, "[]"))
