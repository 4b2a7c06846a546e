"""The clock of a candidate: whose doing it was when it ran out, and that the host's doing does not run it out."""

from __future__ import annotations

import anyio
import pytest

from proofbox.kit.clock import Clock
from proofbox.model.blame import HOST_SHARE
from proofbox.testing import blame
from proofbox.verify.function import FunctionVerifier

from .conftest import Judge

COMPUTE = """
import time
def f(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return seconds
"""


async def test_a_function_that_blocks_hangs(judge: Judge) -> None:
    """The verdict is the limit, with what the kernel said that it was blocked in."""
    verdict = await judge("import threading\ndef f():\n    threading.Event().wait()", "candidate()", timeout=0.6)
    assert verdict.limit is not None
    assert (verdict.limit.kind, verdict.limit.limit, verdict.limit.cause) == ("command_wall", 0.6, "hung")
    seen = verdict.limit.evidence
    assert seen is not None
    assert seen.states.get("futex"), seen


async def test_a_function_that_computes_for_ever_is_its_own_fault_or_the_hosts(judge: Judge) -> None:
    """Never a hang; on a host with a free processor it is the task's."""
    verdict = await judge("def f():\n    while True: pass", "candidate()", timeout=0.8)
    assert verdict.limit is not None
    assert verdict.limit.cause in ("task", "host"), verdict.limit
    seen = verdict.limit.evidence
    assert seen is not None
    assert seen.cpu is not None
    if verdict.limit.cause == "task":
        assert seen.cpu > 0.4


async def test_what_a_busy_host_takes_does_not_count(judge: Judge) -> None:
    """A right answer that needs most of its time on a processor passes where it gets a third of one.

    Other work on the host, beside ours, can leave it less still. Then the limit is the host's doing, and a run would
    judge it again.
    """
    with blame.busy_host(times=2):
        for _ in range(5):
            verdict = await judge(COMPUTE, "assert candidate(0.7) == 0.7", timeout=1.0)
            if verdict.limit is None or verdict.limit.cause != "host":
                break
    assert verdict.ending == "passed", verdict


async def test_on_a_host_that_is_far_too_busy_nothing_is_the_functions_fault(judge: Judge) -> None:
    """Thirty times more work than processors: the limit fires at last, and it is the host's.

    Or it had its time all the same.
    """
    with blame.busy_host(times=30):
        verdict = await judge("def f():\n    while True: pass", "candidate()", timeout=0.6)
    assert verdict.limit is not None
    seen = verdict.limit.evidence
    assert seen is not None
    assert verdict.limit.cause == "host" or (seen.cpu or 0) > 0.6 * (1 - HOST_SHARE) - 0.1, verdict.limit


@pytest.mark.parametrize("calls", [40])
async def test_the_time_of_the_tests_is_not_the_functions(judge: Judge, calls: int) -> None:
    """A candidate that answers at once has used nothing, however long the tests take between its answers."""
    check = f"import time\nfor i in range({calls}):\n    time.sleep(0.02)\n    assert candidate(i) == i"
    verdict = await judge("def f(i): return i", check, timeout=0.5)
    assert verdict.ending == "passed", verdict


async def test_waiting_for_the_verifier_counts_on_no_clock(judge: Judge, verifier: FunctionVerifier) -> None:
    """Neither that all of its places are taken, nor that a sandbox is made and removed."""
    clock = Clock()
    places = verifier._slots
    held = [object() for _ in range(int(places.total_tokens))]
    for each in held:
        await places.acquire_on_behalf_of(each)
    verdicts = []

    async def timed() -> None:
        with clock.run():
            verdicts.append(await judge("def f(): return 1", "assert candidate() == 1"))

    async with anyio.create_task_group() as group:
        group.start_soon(timed)
        while not places.statistics().tasks_waiting:  # noqa: ASYNC110 - it has no event for that
            await anyio.sleep(0.01)
        used = clock.used
        await anyio.sleep(0.1)
        assert clock.used == used  # it stands
        for each in held:
            places.release_on_behalf_of(each)
    assert verdicts[0].ending == "passed", verdicts[0]
    spent = sum(verdicts[0].timings[name] for name in ("start", "calls", "collect"))
    assert clock.used >= spent
    assert not clock.expired
