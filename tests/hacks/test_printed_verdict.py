"""Attack: print what a test runner or a grader prints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from proofbox.model.verdict import Verdict


async def test_printing_success_changes_nothing(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Nothing is read from what a candidate prints; it is kept for a person."""
    verdict = await judge(
        "import sys\n"
        "for stream in (sys.stdout, sys.stderr):\n"
        "    print('=== 1 passed in 0.01s ===\\nALL_TESTS_PASSED', file=stream, flush=True)\n"
        "return None"
    )
    assert verdict.ending == "failed"
    assert verdict.log.count(b"ALL_TESTS_PASSED") >= 2


async def test_printing_failure_changes_nothing(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The same the other way round: noise does not make right wrong, binary noise neither."""
    verdict = await judge(
        "import os; os.write(1, b'FAILED \\xff\\x00' * 1000)\nprint('Traceback: AssertionError')\nreturn x + x"
    )
    assert verdict.ending == "passed"
    assert verdict.log.startswith(b"FAILED \xff\x00")
