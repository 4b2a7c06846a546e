"""Filling the disk with files that have nothing in them."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside
from tests.escape.resources.bombs import LIMITS, goes_off

from proofbox.sandbox.result import CommandResult

BOMB = "i=0; while mkdir /tmp/$i; do i=$((i + 1)); done 2> /dev/null; echo $i"


def full(result: CommandResult) -> bool:
    """It has counted to an end, which is the limit and what a runtime has room for beside it."""
    return bool(result.stdout) and int(result.stdout) <= 2 * (LIMITS.inodes or 0)


@WHOEVER
async def test_the_inodes_are_used_up_inside(inside: Inside) -> None:
    """At the sandbox's limit; it goes on when it has cleaned up."""
    await goes_off(inside, "inodes", BOMB, full)
