"""Frames that are larger than any may be: a length for which the host would have to make room."""

from __future__ import annotations

import pytest
from tests.escape.conftest import WHOEVER
from tests.escape.protocol.conftest import TakenOver

from proofbox.wire.frames import GUEST_DATA, HEADER

LENGTHS = {"a byte too many": 65_537, "all that a number can say": 0xFFFF_FFFF}


@WHOEVER
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
async def test_a_frame_that_is_too_large_is_the_end(taken_over: TakenOver, length: int) -> None:
    """Before a byte of it is kept."""
    await taken_over.say(HEADER.pack(length, GUEST_DATA, 0, 1, 1))
    await taken_over.is_caught(f"frame of {length} bytes")
