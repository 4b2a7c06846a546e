"""Frames that are cut short: half a header, half a payload, and then nothing, or the end."""

from __future__ import annotations

import pytest
from tests.escape.conftest import WHOEVER
from tests.escape.protocol.conftest import TakenOver, ending_of

from proofbox.model.outcome import HitLimit, Lost
from proofbox.wire import frames
from proofbox.wire.frames import HEADER

HALVES = {
    "half a header": HEADER.pack(4, frames.END, 0, 0, 1)[:7],
    "half a payload": HEADER.pack(60_000, frames.GUEST_DATA, 0, 1, 1) + bytes(100),
}


@WHOEVER
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_a_frame_that_does_not_end_holds_nobody_up(taken_over: TakenOver, half: bytes) -> None:
    """What runs is lost with the channel, and is no success; who waits is told."""
    running = await taken_over.box.start("sleep 600")
    await taken_over.say(half)
    taken_over.fall_silent()
    outcome = await ending_of(running)
    assert isinstance(outcome, Lost), outcome
    await taken_over.leaves_others_alone()


@WHOEVER
async def test_a_frame_that_never_comes_does_not_stop_the_clock(taken_over: TakenOver) -> None:
    """The host's own ends who stands still in the middle of one."""
    running = await taken_over.box.start("sleep 600", timeout=0.3)
    await taken_over.say(HALVES["half a payload"])
    outcome = await ending_of(running)
    assert isinstance(outcome, Lost | HitLimit), outcome
    await taken_over.leaves_others_alone()
