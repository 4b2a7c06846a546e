"""Planned calls: only those that are made whatever the candidate returns."""

from __future__ import annotations

import pytest

from proofbox.model.task import FunctionTests
from proofbox.verify.inside.plain import decode
from proofbox.verify.plan import planned_calls


def calls(*lines: str, head: str = "def check(candidate):") -> list[object]:
    """First arguments of the planned calls of a test with these lines in ``check``."""
    test = "\n".join([head, *(f"    {line}" for line in lines)])
    tests = FunctionTests(prompt="", entry_point="f", test=test)
    return [decode(call)[0][0] for call in planned_calls(tests)]


def test_straight_asserts_with_literals_are_planned_in_order() -> None:
    """Arithmetic, built-in functions and the function's own name do not stop it."""
    found = calls(
        '"""Tests."""',
        "import math",
        "assert candidate(1) == 1, 'first'",
        "assert abs(candidate(-2) - 1.5) < 1e-6",
        "assert tuple(candidate([3])) == tuple(f([4]))",
        "result = candidate((5, {'a': None}))",
        "assert not candidate(6)",
    )
    assert found == [1, -2, [3], [4], (5, {"a": None}), 6]


@pytest.mark.parametrize(
    "line",
    [
        "for i in range(3): assert candidate(i)",
        "if candidate(0): pass",
        "assert candidate(a)",
        "assert candidate(candidate(0))",
        "assert helper(candidate)",
        "assert [candidate(i) for i in (1, 2)]",
        "candidate = wrap(candidate)",
        "assert candidate({1, 2})",
        "assert candidate(*[1])",
        "assert candidate(1, **{'b': 2})",
        "return",
        "raise ValueError",
        "try: candidate(1)\n    except ValueError: pass",
        "with open('x'): candidate(1)",
        "def inner(): candidate(1)",
        "assert (lambda: candidate(1))()",
    ],
)
def test_what_depends_on_run_time_ends_the_plan(line: str) -> None:
    """What came before it stays planned, what comes after it does not."""
    assert calls("assert candidate(7)", line, "assert candidate(8)") == [7]


def test_a_short_circuit_ends_the_plan_after_its_certain_part() -> None:
    """Only the first operand is always evaluated."""
    assert calls("assert candidate(1) and candidate(2)", "assert candidate(3)") == [1]
    assert calls("assert 0 < candidate(1) < candidate(2)", "assert candidate(3)") == [1]


def test_no_plan_without_a_plain_check() -> None:
    """Two of them, decorators, other parameters or a syntax error: the grader finds out by itself."""
    line = "assert candidate(1)"
    assert calls(line, head="@decorated\ndef check(candidate):") == []
    assert calls(line, head="def check(candidate, other):") == []
    assert calls(line, head="def check(candidate):\n    pass\ndef check(candidate):") == []
    assert calls("assert candidate(1", head="def check(candidate):") == []
