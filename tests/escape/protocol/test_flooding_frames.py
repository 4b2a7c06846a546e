"""Frames without end: data that nobody gave credit for, and small ones that are right, so that nobody else is heard."""

from __future__ import annotations

import anyio
from tests.escape.conftest import WHOEVER
from tests.escape.protocol.conftest import TakenOver

from proofbox.wire import frames, guest
from proofbox.wire.frames import encode_frame

FLOOD = 50_000


@WHOEVER
async def test_data_without_credit_is_the_end(taken_over: TakenOver) -> None:
    """The host holds no more than it has asked for."""
    running = await taken_over.box.start("sleep 600", keep=None)
    await taken_over.say(encode_frame(frames.GUEST_DATA, running.id, bytes(65_536), pipe=1) * 64)
    await taken_over.is_caught("credit")


@WHOEVER
async def test_small_frames_keep_nobody_from_being_heard(taken_over: TakenOver) -> None:
    """They are taken in small bites, and another sandbox is answered between them."""
    running = await taken_over.box.start("sleep 600", stdin=True)
    credit = encode_frame(frames.GUEST_CREDIT, running.id, guest.encode_credit(1), pipe=0)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(taken_over.say, credit * FLOOD)
            for _ in range(3):
                await taken_over.leaves_others_alone()
