"""Forging frames: output that looks like an end, a hello or a fatal error of the guest's."""

from __future__ import annotations

from tests.escape.conftest import Inside

from proofbox.model.outcome import Exited

FRAMES = b"".join(bytes([4, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0]) for kind in range(256)) * 4
PRINT = "import os; os.write(1, {frames!r}); os.write(2, {frames!r}); raise SystemExit(7)"
SPREAD = """
import os
for fd in range(1024):
    try:
        os.write(fd, {frames!r})
    except OSError:
        pass
raise SystemExit(7)
"""


async def test_printed_frames_are_only_printed(inside: Inside) -> None:
    """They are output like any others."""
    text = PRINT.format(frames=FRAMES)
    result = await inside.box.run(["python3", "-I", "-S", "-c", text], user=inside.user)
    assert (result.outcome, result.stdout_bytes, result.stderr_bytes) == (Exited(7), FRAMES, FRAMES)


async def test_frames_into_every_descriptor_end_nothing(inside: Inside) -> None:
    """Of all numbers two are output, and none is the channel."""
    text = SPREAD.format(frames=FRAMES)
    result = await inside.box.run(["python3", "-I", "-S", "-c", text], user=inside.user)
    assert (result.outcome, result.stdout_bytes, result.stderr_bytes) == (Exited(7), FRAMES, FRAMES)
