"""Attack: end the tests with an exception that a runner takes for a skip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

EXCEPTIONS = [
    "import unittest; raise unittest.SkipTest('skipped')",
    "raise StopIteration",
    "raise GeneratorExit",
    "raise BaseException('passed')",
    "raise type('Skipped', (BaseException,), {})('skipped')",
    "raise BaseExceptionGroup('passed', [SystemExit(0)])",
    "raise AssertionError",
    "raise type('Over', (BaseException,), {})",
]


@pytest.mark.parametrize("raises", EXCEPTIONS)
async def test_no_exception_is_a_success(raises: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Only tests that ran to their end pass."""
    assert (await judge(raises)).ending == "failed"


async def test_tests_that_swallow_everything_do_not_swallow_an_exit(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Even where the tests catch all, an exit and a value that is not plain stay failures."""
    test = "def check(candidate):\n    try:\n        candidate(1)\n    except:\n        pass\n"
    assert (await judge("raise SystemExit(0)", test=test)).ending == "failed"
    assert (await judge("return object()", test=test)).ending == "failed"
    assert (await judge("import os; os._exit(0)", test=test)).ending == "failed"
    assert (await judge("raise ValueError", test=test)).ending == "passed"
