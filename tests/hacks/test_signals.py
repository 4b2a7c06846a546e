"""Attack: signal whoever is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("target", ["1", "-1", "os.getppid()", "0"])
@pytest.mark.parametrize("number", [9, 15, 19])
async def test_signals_to_everybody_do_not_pass(
    target: str, number: int, judge: Callable[..., Awaitable[Verdict]]
) -> None:
    """It can end or stop what is in its own sandbox, and so itself; never with success."""
    verdict = await judge(f"import os, time\nos.kill({target}, {number})\nreturn None")
    assert verdict.ending in ("failed", "limit")
    assert (await judge("return x + x")).ending == "passed"
