"""Frames that are none: of no type, with flags that none has, with a payload that is not one of its type."""

from __future__ import annotations

import pytest
from tests.escape.conftest import WHOEVER
from tests.escape.protocol.conftest import TakenOver

from proofbox.wire import frames
from proofbox.wire.frames import HEADER, encode_frame

FRAMES = {
    "of no type": (HEADER.pack(0, 0x42, 0, 0, 1), "frame type"),
    "of the host's": (HEADER.pack(0, frames.RUN, 0, 0, 1), "not one that the guest sends"),
    "a second hello": (encode_frame(frames.GUEST_HELLO, 0, b""), "HELLO"),
    "with unknown flags": (HEADER.pack(0, frames.END, 0x80, 0, 1), "flags"),
    "for no pipe": (HEADER.pack(1, frames.GUEST_DATA, 0, 9, 1) + b"x", "pipe 9"),
    "noise": (bytes(range(256)) * 16, "broke the protocol"),
}


@WHOEVER
@pytest.mark.parametrize("name", FRAMES)
async def test_what_is_no_frame_is_the_end(taken_over: TakenOver, name: str) -> None:
    """The rule that it breaks is named."""
    words, rule = FRAMES[name]
    await taken_over.say(words)
    await taken_over.is_caught(rule)
