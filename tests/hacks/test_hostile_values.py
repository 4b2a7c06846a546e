"""Attack: return plain data that breaks whoever looks at it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

VALUES = {
    "deep": "v = []\nfor _ in range(100000): v = [v]",
    "in itself": "v = []\nv.append(v)",
    "doubling": "v = []\nfor _ in range(60): v = [v, v]",
    "huge text": "v = 'x' * (32 << 20)",
    "huge number": "v = 1 << (64 << 20)",
    "number too long to print": "v = 10 ** 100000",
    "million entries": "v = list(range(3000000))",
    "surrogates": "v = '\\ud800' * 1000",
    "nan": "v = float('nan')",
    "control codes": "v = '\\x1b[2J\\x00\\r' * 100",
    "generator": "v = (i for i in [4])",
    "function": "v = lambda: 4",
    "class": "v = int",
    "module": "import os; v = os",
}


@pytest.mark.parametrize("value", VALUES)
async def test_a_hostile_value_fails_and_harms_nobody(value: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """It is refused where it is made, or compared and found wrong; the next candidate is judged as ever."""
    verdict = await judge(f"{VALUES[value]}\nreturn v", timeout=10.0)
    assert verdict.ending in ("failed", "limit")
    assert (await judge("return x + x")).ending == "passed"


async def test_keys_with_equal_hashes_cost_the_grader_only_its_own_time(
    judge: Callable[..., Awaitable[Verdict]],
) -> None:
    """Building such a set takes hours; the child's CPU time is limited by the kernel, and the verdict is a failure."""
    forge = """
import os, stat
def flood():
    keys = []
    for n in range(60000):
        data = (n * (2 ** 61 - 1)).to_bytes(16, 'little', signed=True)
        keys.append(b'i' + len(data).to_bytes(4, 'little') + data)
    value = b'e' + len(keys).to_bytes(4, 'little') + b''.join(keys)
    reply = b't' + (3).to_bytes(4, 'little') + b's\\x02\\0\\0\\0ok' + value + b'd\\0\\0\\0\\0'
    data = (len(reply) + 1).to_bytes(4, 'little') + b'A' + reply
    for fd in range(3, 1024):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                while data:
                    data = data[os.write(fd, data):]
        except OSError:
            pass
"""
    verdict = await judge("flood()\nreturn None", before=forge)
    assert verdict.ending == "failed"
    assert "CPU time" in verdict.reason


async def test_a_value_that_makes_the_tests_allocate_without_end_fails(
    judge: Callable[..., Awaitable[Verdict]],
) -> None:
    """Memory of the grader's child is limited too."""
    test = "def check(candidate):\n    assert [0] * candidate(1) == []\n"
    verdict = await judge("return 10 ** 12", test=test)
    assert (verdict.ending, "MemoryError" in verdict.reason) == ("failed", True)


async def test_a_value_that_makes_the_tests_compute_without_end_fails(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The tests loop over what was returned, until their CPU time is over."""
    test = "def check(candidate):\n    for i in range(candidate(1)):\n        pass\n    assert False\n"
    verdict = await judge("return 10 ** 15", test=test)
    assert (verdict.ending, "CPU time" in verdict.reason) == ("failed", True)
