"""A fork bomb."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import goes_off

from proofbox.sandbox.result import CommandResult


def denied(result: CommandResult) -> bool:
    """No process was to be had; where nobody counts that, that it came to an end has to do."""
    return result.usage.process_denials != 0


@WHOEVER
async def test_a_fork_bomb_goes_off_inside(inside: Inside) -> None:
    """There are as many processes as the sandbox may have, and then there are none of it."""
    await goes_off(inside, "processes", "bomb() { bomb | bomb & }; bomb; wait", denied)
