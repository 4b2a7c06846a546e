"""The sockets that become the serial ports of a machine."""

from __future__ import annotations

import socket

from proofbox.errors import CreateFailed
from proofbox.runtimes.microvm.control import Control


def open_ports(whose: str) -> tuple[socket.socket, Control, tuple[socket.socket, ...]]:
    """Our end of the channel and of the control port, and the other ends. Raises ``CreateFailed``."""
    made: list[socket.socket] = []
    try:
        made += socket.socketpair()
        made += socket.socketpair()
    except OSError as error:
        for each in made:
            each.close()
        raise CreateFailed(f"{whose}: socketpair: {error.strerror} (see ulimit -n)", "socketpair") from error
    channel, guest, control, init = made
    channel.setblocking(False)
    control.setblocking(False)
    return channel, Control(control), (guest, init)
