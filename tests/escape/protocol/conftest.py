"""What a guest says that somebody has taken over, by a hole in it or in the kernel below: to the host itself."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.escape.conftest import Inside

from proofbox.errors import ProtocolViolation, SandboxLost
from proofbox.kit.loop import watch_readable
from proofbox.model.outcome import Lost, Outcome
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.commands import Command


async def ending_of(running: Command) -> Outcome:
    """How it ended; lost, also where that is told of the whole sandbox."""
    with anyio.fail_after(60):
        try:
            return (await running.wait()).outcome
        except SandboxLost:
            return Lost("guest")


class TakenOver:
    """A sandbox of the runtime whose guest is honest until it is told here what to say. It is real, and so is what the
    host does with it: only the bytes that come out are others.
    """

    def __init__(self, inside: Inside, box: Sandbox) -> None:
        self.box = box
        self._inside = inside
        self._taken = False
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)

    def _take_over(self) -> None:
        if self._taken:
            return
        self._taken = True
        channel = self.box._life.channel
        assert channel._stop_reading is not None
        channel._stop_reading()
        # The honest end stays open until the fixture closes it: what its guest does when it is alone is not asked here.
        self._near, channel._sock = channel._sock, self._near
        channel._stop_reading = watch_readable(channel._sock.fileno(), channel._readable)

    async def say(self, words: bytes) -> None:
        """As much of it as the host takes in."""
        self._take_over()
        left = memoryview(words)
        with anyio.fail_after(60):
            while left:
                try:
                    left = left[self._far.send(left) :]
                except BlockingIOError:
                    await anyio.sleep(0.001)
                except (BrokenPipeError, ConnectionResetError):
                    return

    def fall_silent(self) -> None:
        """It has said all that it will."""
        self._far.shutdown(socket.SHUT_WR)

    async def is_caught(self, word: str) -> None:
        """The host says so, ends this sandbox, and no other."""
        lost = await self.box.wait_lost(60)
        assert isinstance(lost, ProtocolViolation), lost
        assert re.search(word, str(lost)), lost
        with pytest.raises(ProtocolViolation):
            await self.box.run("true")
        await self.leaves_others_alone()

    async def leaves_others_alone(self) -> None:
        """Whatever becomes of this one."""
        assert (await self._inside.box.run("echo on")).stdout == "on\n"

    def close(self) -> None:
        """Leaves nothing of what took over."""
        self._near.close()
        self._far.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the host waits for who is silent, and asks why, proves nothing more when it is longer."""
    monkeypatch.setattr("proofbox.sandbox.commands.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("proofbox.sandbox.lifecycle.EXPLAIN_SECONDS", 0.1)


@pytest.fixture
async def taken_over(inside: Inside) -> AsyncIterator[TakenOver]:
    """It, and that none of its processes is left."""
    async with inside.open_box() as box:
        observed = box._life.observe()
        made = TakenOver(inside, box)
        yield made
        made.close()
    assert [pid for pid in (observed or [()])[0] if Path(f"/proc/{pid}").exists()] == []
