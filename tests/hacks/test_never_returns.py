"""Attack, or accident: never come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

WAYS = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(1e6)",
    "stop": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "pipe": "import os; os.read(os.pipe()[0], 1)",
    "one C call": "sum(range(10 ** 12))",
    "clock set back": "import time\ntime.monotonic = time.time = time.perf_counter = lambda: 0.0\ntime.sleep(1e6)",
    "signals ignored": "import signal\nfor n in (1, 2, 3, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_time_limit_ends_it(way: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The clock is the host's; the verdict names the limit, its value and what was measured."""
    verdict = await judge(WAYS[way], timeout=0.3)
    assert verdict.ending == "limit"
    assert verdict.limit is not None
    assert (verdict.limit.kind, verdict.limit.limit) == ("command_wall", 0.3)
    assert verdict.limit.used is not None
    assert verdict.limit.used >= 0.3


async def test_a_program_that_never_ends_loading_hits_the_limit(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Code at the top of the module counts like a call."""
    verdict = await judge("return x + x", before="while True: pass", timeout=0.3)
    assert verdict.limit is not None
    assert verdict.limit.kind == "command_wall"


async def test_a_wrong_answer_before_the_endless_one_is_the_verdict(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """As if the tests had called one after the other: the first wrong answer ends them."""
    verdict = await judge("if x != 2:\n    while True: pass\nreturn 5", timeout=5.0)
    assert verdict.ending == "failed"
    assert "call 1 returned 5" in verdict.reason
