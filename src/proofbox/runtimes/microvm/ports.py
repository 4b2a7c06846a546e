"""The sockets that become the serial ports of a machine."""

from __future__ import annotations

import socket

from proofbox.errors import CreateFailed
from proofbox.runtimes.microvm.control import Control
from proofbox.wire.frames import MAX_PAYLOAD, FrameDecoder, WireError
from proofbox.wire.guest import fatal_words


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


def last_words(channel: socket.socket) -> str:
    """What was said on its channel of a machine that has ended: QEMU's own words, the console's last; empty if none."""
    try:
        frames = FrameDecoder("guest").feed(channel.recv(MAX_PAYLOAD))
        return next((fatal_words(each.payload) for each in frames), "")
    except (OSError, WireError):
        return ""
