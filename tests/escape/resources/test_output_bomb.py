"""Output without end."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import goes_off

from proofbox.model.outcome import HitLimit
from proofbox.sandbox.result import CommandResult


def late(result: CommandResult) -> bool:
    """Its time was up, and it has said more than anybody kept."""
    return isinstance(result.outcome, HitLimit) and result.truncated


@WHOEVER
async def test_output_without_end_ends_with_its_command(inside: Inside) -> None:
    """What nobody asked for is dropped, and its time is up when it is up."""
    await goes_off(inside, "command_wall", "yes", late)
