"""Attack: leave with success before the tests have run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

EXITS = {
    "os._exit": "import os; os._exit(0)",
    "posix._exit": "import posix; posix._exit(0)",
    "sys.exit": "import sys; sys.exit(0)",
    "SystemExit": "raise SystemExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "kill": "import os; os.kill(os.getpid(), 9)",
    "abort": "import os; os.abort()",
}


@pytest.mark.parametrize("exit_by", EXITS)
async def test_an_exit_in_the_call_fails(exit_by: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """However it leaves, calls are open that nobody answers."""
    assert (await judge(EXITS[exit_by])).ending == "failed"


@pytest.mark.parametrize("exit_by", EXITS)
async def test_an_exit_at_import_fails(exit_by: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The program itself ends before there is a function."""
    assert (await judge("return x + x", before=EXITS[exit_by])).ending == "failed"


async def test_an_exit_after_a_right_answer_fails(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """One right answer is not all of them."""
    verdict = await judge("if x != 2:\n    import os; os._exit(0)\nreturn x + x")
    assert verdict.ending == "failed"
    assert "exited early with code 0 before call 2" in verdict.reason


async def test_atexit_and_threads_do_not_keep_a_verdict_away(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """What a candidate leaves running is killed, and its answers count as they are."""
    hold = """
        import atexit, threading, time
        atexit.register(time.sleep, 99)
        threading.Thread(target=time.sleep, args=(99,)).start()
    """
    assert (await judge("return x + x", before=hold)).ending == "passed"
    assert (await judge("return x", before=hold)).ending == "failed"
