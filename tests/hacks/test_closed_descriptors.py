"""Attack: close what the harness needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict


@pytest.mark.parametrize("when", ["at import", "in the call"])
async def test_closing_every_descriptor_fails(when: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Without a channel there are no answers, and no answer is not a right one."""
    close = "import os; os.closerange(0, 4096)"
    verdict = await judge(
        close if when == "in the call" else "return x + x", before=close if when == "at import" else ""
    )
    assert verdict.ending == "failed"


async def test_a_closed_channel_and_a_sleeping_process_fails_soon(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """It is not waited for until the time limit."""
    verdict = await judge("import os, time; os.closerange(3, 4096); time.sleep(600)", timeout=30.0)
    assert verdict.ending == "failed"
    assert "closed its channel before call 1" in verdict.reason


async def test_a_file_in_place_of_the_channel_fails(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Answers into a file of the candidate's reach nobody."""
    body = """
        import os
        fd = os.open("/dev/null", os.O_RDWR)
        for n in range(3, 1024):
            if n != fd:
                os.dup2(fd, n)
        return x + x
    """
    assert (await judge(body)).ending == "failed"
