"""The other side of every attack: what is right passes, or the attacks would prove nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from proofbox.model.verdict import Verdict


async def test_a_right_function_passes(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The task that all attacks are tried on can be solved."""
    verdict = await judge("return x + x")
    assert (verdict.ending, verdict.reason) == ("passed", "")


async def test_a_wrong_function_fails_with_the_line_and_what_it_returned(
    judge: Callable[..., Awaitable[Verdict]],
) -> None:
    """The reason names the assertion that did not hold."""
    verdict = await judge("return x * x if x == 2 else None")
    assert verdict.ending == "failed"
    assert 'line 4 of the tests: assert candidate("ab") == "abab"' in verdict.reason
    assert "call 2 returned None" in verdict.reason
