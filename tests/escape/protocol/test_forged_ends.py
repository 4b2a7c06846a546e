"""Ends of commands that were none: of one that nobody started, by limits that nobody set, of output that never came."""

from __future__ import annotations

from typing import Any

import pytest
from tests.escape.conftest import WHOEVER
from tests.escape.protocol.conftest import TakenOver

from proofbox.wire import frames, guest
from proofbox.wire.frames import encode_frame

ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "a deadline nobody set": ({"how": guest.DEADLINE}, "deadline"),
    "a kill nobody asked for": ({"how": guest.KILLED}, "nobody asked"),
    "an output limit nobody set": ({"how": guest.OUTPUT_LIMIT}, "output limit"),
    "more output than came": ({"how": guest.EXITED, "produced": (1 << 40, 0, 0)}, "sent"),
}


def end(stream: int, **said: Any) -> bytes:
    """An END frame."""
    return encode_frame(frames.END, stream, guest.END_LAYOUT.encode(guest.End(**{"code": 0, **said})))


@WHOEVER
@pytest.mark.parametrize("name", ENDS)
async def test_an_end_that_cannot_be_is_the_end_of_who_says_it(taken_over: TakenOver, name: str) -> None:
    """It is held against what the host asked for, and what it has received."""
    said, word = ENDS[name]
    running = await taken_over.box.start("sleep 600")
    await taken_over.say(end(running.id, **said))
    await taken_over.is_caught(word)


@WHOEVER
async def test_the_end_of_a_command_that_nobody_started_is_the_end_of_who_says_it(taken_over: TakenOver) -> None:
    """Streams are the host's to open."""
    await taken_over.say(end(4711, how=guest.EXITED))
    await taken_over.is_caught("stream 4711")
