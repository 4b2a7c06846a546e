"""Attack: redefine what the tests use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from proofbox.model.verdict import Verdict

PROMPT = '''def value(xs, x):
    """The value of a polynomial."""
    return sum(c * x ** i for i, c in enumerate(xs))


def zero(xs):
    """A zero of the polynomial."""
'''
TEST = """
def check(candidate):
    for coefficients in ([-2, 1], [6, -2]):
        assert abs(value(coefficients, candidate(coefficients))) < 1e-6
"""


async def test_helpers_of_the_prompt_cannot_be_replaced(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A completion that redefines ``value`` would always be right by its own measure; the tests use the prompt's."""
    cheat = "def value(xs, x):\n    return 0"
    assert (await judge("return 0.0", before=cheat, prompt=PROMPT, test=TEST, name="zero")).ending == "failed"
    right = "return -xs[0] / xs[1]"
    assert (await judge(right, before=cheat, prompt=PROMPT, test=TEST, name="zero")).ending == "passed"


async def test_a_check_of_its_own_is_not_used(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Functions of the candidate named like the tests' have no effect."""
    before = "def check(candidate): pass\ndef candidate(*_): pass\nMETADATA = {'passed': True}\n__name__ = '__main__'"
    assert (await judge("return None", before=before)).ending == "failed"


async def test_a_reference_in_the_tests_is_the_candidate_and_not_the_prompt(
    judge: Callable[..., Awaitable[Verdict]],
) -> None:
    """Tests that call the function by its own name call the candidate, as everybody who runs them in one file does."""
    test = "def check(candidate):\n    assert candidate(2) == double(2) and double(3) == 6\n"
    assert (await judge("return x + x", test=test)).ending == "passed"
    assert (await judge("return None", test=test)).ending == "failed"
