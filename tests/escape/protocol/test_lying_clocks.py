"""Time travel: a guest that says how long something took, or when it is over, as it likes."""

from __future__ import annotations

from time import perf_counter

import anyio
from tests.escape.conftest import WHOEVER
from tests.escape.protocol.conftest import TakenOver, ending_of
from tests.escape.protocol.test_forged_ends import end

from proofbox.model.outcome import Exited, HitLimit, Lost
from proofbox.wire import guest

CENTURY = 3_155_760_000


@WHOEVER
async def test_a_deadline_is_over_when_the_hosts_clock_says_so(taken_over: TakenOver) -> None:
    """Not before: a guest that calls it over ends with that."""
    running = await taken_over.box.start("sleep 600", timeout=CENTURY / 100)
    await taken_over.say(end(running.id, how=guest.DEADLINE, elapsed_us=CENTURY * 10_000))
    await taken_over.is_caught("deadline")


@WHOEVER
async def test_an_end_that_comes_too_late_is_not_heard(taken_over: TakenOver) -> None:
    """However short a time it says: once the host has waited as long as for a busy one, it was none."""
    running = await taken_over.box.start("sleep 600", timeout=0.2)
    await taken_over.say(b"")  # from here on its honest guest is not heard
    outcome = await ending_of(running)
    await taken_over.say(end(running.id, how=guest.EXITED, elapsed_us=1))
    assert isinstance(outcome, Lost | HitLimit), outcome
    assert await ending_of(running) == outcome
    await taken_over.leaves_others_alone()


@WHOEVER
async def test_a_time_that_cannot_be_is_not_believed(taken_over: TakenOver) -> None:
    """A century, for a command that ran for a moment: it cannot have taken longer than the host has waited."""
    began = perf_counter()
    running = await taken_over.box.start("sleep 600")
    await taken_over.say(end(running.id, how=guest.EXITED, elapsed_us=CENTURY * 1_000_000, gone=True))
    with anyio.fail_after(60):
        result = await running.wait()
    assert result.outcome == Exited(0)
    assert result.elapsed <= perf_counter() - began
    await taken_over.leaves_others_alone()
