"""Attack: return an object that says yes to every comparison."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

LIE = """
def yes(*_):
    return True
LIES = {n: yes for n in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__contains__")}
LIES.update({n: (lambda self, *_: self) for n in ("__sub__", "__rsub__", "__add__", "__abs__", "__getitem__")})
LIES["__hash__"] = lambda self: 1
"""


@pytest.mark.parametrize("base", ["object", "int", "str", "list", "float", "dict", "tuple", "set", "bytes"])
async def test_a_value_that_equals_everything_fails(base: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Only exact built-in types cross; a subclass of one does not."""
    verdict = await judge(f"return type('Liar', ({base},), LIES)()", before=LIE)
    assert verdict.ending == "failed"
    assert "call 1 returned a value of type Liar, which is not plain data" in verdict.reason


async def test_a_lie_inside_a_list_fails(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Every value of a nested one is looked at."""
    verdict = await judge("return {'a': [1, (type('Liar', (int,), LIES)(),)]}", before=LIE)
    assert "of type Liar, which is not plain data" in verdict.reason


async def test_a_class_that_calls_itself_int_fails(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Names prove nothing."""
    assert (
        await judge("return type('int', (int,), dict(LIES, __module__='builtins'))(3)", before=LIE)
    ).ending == "failed"


async def test_a_lying_exception_fails(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """An exception whose texts and arguments lie is an exception all the same."""
    body = "raise type('Liar', (Exception,), dict(LIES, __str__=lambda s: 1 / 0, args=5, __class__=int))()"
    assert (await judge(body, before=LIE)).ending == "failed"
