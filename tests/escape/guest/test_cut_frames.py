"""Truncating frames: output that begins like one, and a program that ends in the middle of it."""

from __future__ import annotations

from tests.escape.conftest import Inside

from proofbox.model.outcome import Exited, Signaled

BEGUN = bytes([0xFF, 0xFF, 0, 0, 0x83, 0, 1, 0, 1, 0, 0, 0]) + b"x"
CUT = "import os; os.write(1, {begun!r}); os.kill(os.getpid(), 9)"


async def test_what_is_cut_short_is_output_that_was_cut_short(inside: Inside) -> None:
    """It is told as it is, and the next command's output is its own."""
    text = CUT.format(begun=BEGUN)
    result = await inside.box.run(["python3", "-I", "-S", "-c", text], user=inside.user)
    assert (result.outcome, result.stdout_bytes) == (Signaled(9), BEGUN)
    after = await inside.box.run("echo on; exit 3", user=inside.user)
    assert (after.outcome, after.stdout) == (Exited(3), "on\n")
