"""Splitting what a hostile process writes into frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.verify.frames import BadFrame, Splitter, frame
from proofbox.verify.inside.channel import MAX_FRAME

frames = st.lists(st.binary(max_size=50).map(lambda payload: frame(b"A", payload)), max_size=8)


@given(frames, st.integers(1, 20))
def test_frames_come_out_whole_however_they_were_cut(sent: list[bytes], step: int) -> None:
    """Order and bytes stay; nothing is held back once it is whole."""
    stream = b"".join(sent)
    splitter = Splitter()
    found = [part for at in range(0, len(stream), step) for part in splitter.feed(stream[at : at + step])]
    assert found == sent
    assert not splitter.buffer


@pytest.mark.parametrize("size", [0, MAX_FRAME + 1, 0xFFFFFFFF])
def test_a_length_that_no_frame_has_is_refused_at_once(size: int) -> None:
    """Before a byte of the payload is waited for or kept."""
    with pytest.raises(BadFrame, match=f"a frame of {size} bytes"):
        Splitter().feed(size.to_bytes(4, "little"))
