"""The function verifier, for real: what crosses between tests and candidate, and how each ending is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from proofbox.errors import VerifierFailed
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.sandbox.host import Host
from proofbox.verify.function import FunctionVerifier
from proofbox.verify.graders import Grader

Judge = Callable[..., Awaitable[Verdict]]

LITERALS = """
    None, True, 0, -1, 10 ** 40, 0.1, -0.0, float('inf'), 1j, 'text', '\\ud800', b'\\x00\\xff', bytearray(b'a'),
    (), (1, (2,)), [], [[1], [2, [3]]], {}, {'b': 1, 'a': [2]}, {(1, 2): {3: 4}}, {1, 2}, frozenset({3}), range(3), ...
"""


@pytest.mark.parametrize("way", ["planned", "live"])
async def test_all_plain_data_goes_in_and_comes_out_unchanged(way: str, judge: Judge) -> None:
    """Types and values, both for calls that are sent ahead and for those that are not."""
    check = f"""
        for value in ({LITERALS}):
            result = candidate(value)
            assert type(result) is type(value) and repr(result) == repr(value), repr(result)
    """
    if way == "planned":
        check = "\n".join(
            f"assert repr(candidate({v})) == repr({v})" for v in ("None", "-1", "[1, {'a': (2.5,)}]", "b'x'")
        )
    assert (await judge("def f(x): return x", check)).reason == ""


async def test_keyword_arguments_and_defaults_cross(judge: Judge) -> None:
    """As Python calls them."""
    check = "assert candidate(1, b=2) == [1, 2, 3]\nassert candidate(*[1], **{'b': 2, 'c': 4}) == [1, 2, 4]"
    assert (await judge("def f(a, b, c=3): return [a, b, c]", check)).ending == "passed"


async def test_changes_in_place_reach_the_tests_objects(judge: Judge) -> None:
    """Lists, dicts, sets and bytearrays that the function changed are changed for the tests too."""
    check = """
        a, b, c, d = [3, 1, 2], {1: 2}, {1, 2}, bytearray(b"ab")
        same = a
        assert candidate(a, b, c, d=d) is None
        assert same == [1, 2, 3] and b == {3: 4} and c == {2} and d == bytearray(b"abc")
        e = [[1], (2,)]
        candidate(e, {1: 0}, {1}, d=bytearray())
        assert e == [(2,)]
    """
    program = """
        def f(a, b, c, d):
            a.sort() if a[0] == 3 else a.pop(0)
            b.pop(1)
            b[3] = 4
            c.discard(1)
            d.append(99)
    """
    assert (await judge(program, check)).reason == ""


async def test_an_argument_left_with_an_object_inside_fails(judge: Judge) -> None:
    """What the tests could look at has to be plain data."""
    verdict = await judge("def f(a): a.append(f)", "a = []\ncandidate(a)\nassert len(a) == 1")
    assert "left in its arguments a value of type function, which is not plain data" in verdict.reason


@pytest.mark.parametrize(
    ("raises", "expects"),
    [
        ("ValueError('no')", "ValueError"),
        ("KeyError('k')", "LookupError"),
        ("type('Mine', (ZeroDivisionError,), {})(1, 2)", "ArithmeticError"),
        ("type('Own', (Exception,), {})()", "Exception"),
        ("FileNotFoundError(2, 'gone')", "OSError"),
        ("StopIteration(5)", "StopIteration"),
    ],
)
async def test_expected_exceptions_arrive_as_their_built_in_type(raises: str, expects: str, judge: Judge) -> None:
    """Tests that expect an exception work; a class of the candidate's own arrives as its nearest built-in base."""
    check = f"try:\n    candidate()\nexcept {expects} as error:\n    kept = error\nassert kept"
    assert (await judge(f"def f(): raise {raises}", check)).reason == ""
    assert (await judge("def f(): pass", check)).ending == "failed"
    assert (await judge("def f(): raise AssertionError", check.replace("Exception", "ValueError"))).ending == "failed"


async def test_texts_and_arguments_of_exceptions_arrive(judge: Judge) -> None:
    """Some tests look at the message."""
    check = """
        try:
            candidate()
        except ValueError as error:
            assert str(error) == "bad value" and error.args == ("bad value",)
        else:
            assert False
    """
    assert (await judge("def f(): raise ValueError('bad value')", check)).reason == ""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(x): return 1 / 0", "call 1 raised ZeroDivisionError: division by zero"),
        ("def f(x) return x", "the program raised SyntaxError"),
        ("def g(x): return x", "f is not defined after the program has run"),
        ("f = 5", "f is not callable after the program has run"),
        ("import nothing_of_this_name", "the program raised ModuleNotFoundError: No module named"),
        ("x = 1 / 0", "the program raised ZeroDivisionError"),
        ("def f(): return 1", "call 1 raised TypeError"),
        ("def f(x): return x\n\0", "the program raised"),
        ("def f(x): return '\ud800'", "the program raised UnicodeEncodeError"),
        ("def f(x): return f", "call 1 returned a value of type function, which is not plain data"),
        ("def f(x): return 7", "line 2 of the tests: assert candidate(1) == 1 (AssertionError; call 1 returned 7)"),
        ("import os; os._exit(3)", "exited early with code 3 before call 1 was answered"),
        ("def f(x): import os; os.kill(os.getpid(), 11)", "was ended by signal SIGSEGV before call 1 was answered"),
        ("def f(x): raise SystemExit('bye')", "call 1 raised SystemExit: bye"),
    ],
)
async def test_the_reason_says_what_was_wrong(program: str, reason: str, judge: Judge) -> None:
    """One line that a person can act on."""
    verdict = await judge(program, "assert candidate(1) == 1")
    assert verdict.ending == "failed"
    assert reason in verdict.reason


async def test_installed_packages_can_be_imported_but_are_not_loaded_at_the_start(judge: Judge) -> None:
    """The interpreter starts without ``site``; the first import that needs it brings it in, once."""
    program = """
        import sys
        before = "site" in sys.modules
        try:
            import no_such_package
        except ImportError:
            pass
        def f(): return [before, "site" in sys.modules]
    """
    assert (await judge(program, "assert candidate() == [False, True]")).reason == ""


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("pass", "without one call of the candidate"),
        ("import nothing_of_this_name\ncandidate(1)", "raised before they called the candidate: ModuleNotFoundError"),
        ("candidate(lambda: 1)", "call 1 of the tests passes a value of type function"),
    ],
)
async def test_tests_that_cannot_judge_are_the_verifiers_failure(check: str, says: str, judge: Judge) -> None:
    """Never a score: not of a wrong candidate, and not of a right one."""
    with pytest.raises(VerifierFailed, match=says):
        await judge("def f(*_): return 1", check)


async def test_tests_without_check_are_the_verifiers_failure(verifier: FunctionVerifier) -> None:
    """Zero tests are no success."""
    tests = FunctionTests(prompt="", entry_point="f", test="METADATA = {}")
    with pytest.raises(VerifierFailed, match="define no function check"):
        await verifier.judge(Task(id="T/1", instruction="", judge=tests), Candidate(completion="def f(): pass"))


async def test_calls_that_leave_the_plan_are_judged_without_one(judge: Judge) -> None:
    """A helper that calls the candidate once more makes the plan wrong; the verdict is that of the plain order."""
    check = """
        assert twice(candidate(1)) == 2
        assert candidate(5) == 4
    """
    prompt = "def f():\n    pass\n\ndef twice(x):\n    return x + f(x) - x\n\n"
    program = "calls = []\ndef f(x):\n    calls.append(x)\n    return len(calls) + (x == 5)"
    assert (await judge(program, check, prompt=prompt)).reason == ""


async def test_only_the_candidates_own_time_counts(judge: Judge) -> None:
    """Tests that take longer than the limit by themselves cost the candidate nothing."""
    check = "import time\ncandidate(1)\ntime.sleep(0.6)\nassert candidate(2) == 2"
    assert (await judge("def f(x): return x", check, timeout=0.5)).reason == ""


async def test_the_way_of_many_short_calls_does_not_count(judge: Judge) -> None:
    """A hundred calls that wait for a busy host a hundred times are not a slow candidate."""
    check = "for i in range(100):\n    assert candidate(i) == i"
    program = "import time\ndef f(x):\n    time.sleep(0.01)\n    return x"
    assert (await judge(program, check, timeout=0.5)).reason == ""


async def test_slow_calls_count_together(judge: Judge) -> None:
    """The limit is for all calls, not for each."""
    check = "for i in range(6):\n    assert candidate(i) == i"
    verdict = await judge("import time\ndef f(x):\n    time.sleep(0.2)\n    return x", check, timeout=0.5)
    assert verdict.limit is not None
    assert verdict.limit.kind == "command_wall"
    assert verdict.limit.limit == 0.5
    assert verdict.limit.used is not None
    assert 0.5 <= verdict.limit.used <= verdict.limit.elapsed + 0.1


async def test_many_candidates_at_once_get_each_its_own_verdict(verifier: FunctionVerifier) -> None:
    """One grader serves them all, and nothing of one is mixed with another."""
    tests = FunctionTests(prompt="", entry_point="f", test="def check(candidate):\n    assert candidate() == 3\n")
    task = Task(id="T/many", instruction="", judge=tests)
    endings: dict[int, str] = {}

    async def one(number: int) -> None:
        verdict = await verifier.judge(task, Candidate(completion=f"def f(): return {number}"))
        endings[number] = f"{verdict.ending} {verdict.reason[-15:]}"

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(one, number)
    expected = {n: "passed " if n == 3 else f"failed {f'call 1 returned {n})'[-15:]}" for n in range(12)}
    assert endings == expected


async def test_a_cancelled_judgement_leaves_the_verifier_usable(verifier: FunctionVerifier, judge: Judge) -> None:
    """Its sandbox is gone, the grader serves on."""
    with anyio.move_on_after(0.3) as scope:
        await judge("def f(x):\n    while True: pass", "candidate(1)", timeout=60.0)
    assert scope.cancelled_caught
    assert (await judge("def f(x): return x", "assert candidate(1) == 1")).ending == "passed"


@pytest.mark.parametrize("way", ["its child", "its sandbox"])
async def test_a_grader_that_dies_fails_who_is_judged_and_is_replaced(way: str, host: Host) -> None:
    """That is no verdict; who comes next gets a new grader."""
    sound = FunctionTests(prompt="", entry_point="f", test="def check(candidate):\n    assert candidate() == 3\n")
    dies = (
        "    import os\n    os.kill(os.getpid(), 9)\n"
        if way == "its child"
        else "    import time\n    time.sleep(60)\n"
    )
    broken = FunctionTests(prompt="", entry_point="f", test=sound.test + dies)
    candidate = Candidate(completion="def f(): return 3")
    async with FunctionVerifier(host) as verifier:
        assert (await verifier.judge(Task(id="T/1", instruction="", judge=sound), candidate)).ending == "passed"
        (first,) = verifier.graders
        async with anyio.create_task_group() as group:
            if way == "its sandbox":
                group.start_soon(_close_soon, first)
            with pytest.raises(VerifierFailed):
                await verifier.judge(Task(id="T/2", instruction="", judge=broken), candidate)
        assert (await verifier.judge(Task(id="T/1", instruction="", judge=sound), candidate)).ending == "passed"
        assert verifier.graders != (first,)


async def _close_soon(grader: Grader) -> None:
    await anyio.sleep(0.5)
    await grader.box.aclose()


async def test_a_broken_body_of_the_context_comes_out_as_it_is(host: Host) -> None:
    """The verifier's own tasks do not wrap the caller's error."""
    with pytest.raises(KeyError):
        async with FunctionVerifier(host):
            raise KeyError("mine")
