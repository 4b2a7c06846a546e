"""A machine whose kernel was taken over, and which says to the host what no init says."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager

import anyio
import pytest
from tests.escape.conftest import AT_MACHINES, WHOEVER, Inside, handle_of, machine_of

from proofbox.errors import ProtocolViolation
from proofbox.sandbox.api import Sandbox

pytestmark = [AT_MACHINES, WHOEVER]

LIES = {
    "counters that are none": struct.pack("<I", 14) + b"U" + struct.pack("<BI", 1, 8) + b"\xff" * 8,
    "an endless record": struct.pack("<I", 1 << 31),
}


@contextmanager
def lying(box: Sandbox, words: bytes) -> Iterator[None]:
    """Its init has said that, and will say nothing more."""
    handle = handle_of(box)
    near, far = socket.socketpair()
    near.setblocking(False)
    honest, handle.control.port = handle.control.port, near
    with closing(honest), closing(far):
        far.sendall(words)
        far.shutdown(socket.SHUT_WR)
        yield


@pytest.mark.parametrize("name", LIES)
async def test_a_lie_ends_who_told_it(inside: Inside, name: str) -> None:
    """Where the counters are asked for, the error names the liar; its machine is ended, and another one goes on."""
    async with inside.open_box() as box:
        with lying(box, LIES[name]):
            with pytest.raises(ProtocolViolation, match="machine's init"):
                await box.usage()
            with anyio.fail_after(60):
                await machine_of(box).exited()
            with pytest.raises(ProtocolViolation):
                await box.run("true")
    assert (await inside.box.run("echo on")).stdout == "on\n"


async def test_a_lie_among_the_last_words_of_a_machine_leaves_nobody_waiting(inside: Inside) -> None:
    """It ends by itself, and what it said before is read only then: who waits for a command is told."""
    async with inside.open_box() as box:
        running = await box.start("sleep 600")
        with lying(box, LIES["an endless record"]):
            await machine_of(box).monitor.command("quit")
            with anyio.fail_after(60), pytest.raises(ProtocolViolation, match="machine's init"):
                await running.wait()
