"""Attack, or accident: print without end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from proofbox.model.verdict import Verdict


async def test_output_without_end_hits_the_limit_on_output(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A gigabyte is never kept, and the verdict names the limit."""
    verdict = await judge(
        "import os\nfor _ in range(1024):\n    os.write(1, bytes(1 << 20))\nreturn None", timeout=10.0
    )
    assert verdict.ending == "limit"
    assert verdict.limit is not None
    assert verdict.limit.kind == "output"
    assert len(verdict.log) <= 8192


async def test_output_below_the_limit_is_no_failure(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A candidate may be noisy and right."""
    assert (await judge("print('x' * 100000)\nreturn x + x")).ending == "passed"
