"""A host that is asked for more sandboxes than it can hold says so, beforehand where it is told the number."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import anyio.to_thread
import pytest
from tests.conftest import open_host

from proofbox.errors import CreateFailed, Refused
from proofbox.host.room import MAKING
from proofbox.model.limits import Limits
from proofbox.model.task import FunctionTests, Task
from proofbox.runtime.reaper import reap_in_background
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.tasks.demo import PROMPT, TEST
from proofbox.trial.facts import host_facts

pytestmark = [pytest.mark.anyio, pytest.mark.container]


@pytest.fixture
async def native() -> AsyncIterator[Host]:
    """Of its own: what it holds open is this test's."""
    async with open_host("native") as found:
        await anyio.to_thread.run_sync(reap_in_background().join)  # it opens files of its own
        yield found


@pytest.fixture
def few() -> Iterator[int]:
    """So many sandboxes' descriptors are left, beside those for the making."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + MAKING + 3 * 20, before[1]))
    yield 20
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_more_than_fit_are_refused_with_the_limit(native: Host, few: int) -> None:
    """What fits is not, and what is left becomes less with every sandbox. This process may close a file meanwhile."""
    fits = native.rooms()[0].holds
    native.check_room(fits - 5)
    with pytest.raises(Refused, match=rf"room for \d+ of {fits + 20} sandboxes .*; (as root: )?ulimit -n \d+"):
        native.check_room(fits + 20)
    async with AsyncExitStack() as opened:
        for _ in range(15):
            await opened.enter_async_context(native.open_sandbox())
        assert native.rooms()[0].holds <= fits - 10
        with pytest.raises(Refused, match="at one time refused: open files of this process"):
            native.check_room(fits - 5)


async def test_a_pool_that_does_not_fit_is_refused(native: Host, few: int) -> None:
    """By the least that it is to hold; it may be asked to hold more when there is room."""
    with pytest.raises(Refused, match="at one time refused: open files of this process"):
        async with native.pool(size=(few + 20, few + 20)):
            pass
    async with native.pool(size=(1, few + 100)) as pool:
        assert (await pool.ready(60)).ready == 1


async def test_who_was_not_told_the_number_gets_the_same_remedy(native: Host, few: int) -> None:
    """The first sandbox too many fails with the limit that stopped it, and takes no other one with it."""
    boxes: list[Sandbox] = []

    async def too_many(opened: AsyncExitStack) -> None:
        for _ in range(few + MAKING):
            boxes.append(await opened.enter_async_context(native.open_sandbox()))  # noqa: PERF401 - kept when it fails

    async with AsyncExitStack() as opened:
        with pytest.raises(CreateFailed, match=r"^sandbox \w+: this process may open \d+ files only .*ulimit -n 65536"):
            await too_many(opened)
        assert len(boxes) >= few
        assert (await boxes[0].run("echo here")).stdout == "here\n"


async def test_a_run_notes_what_its_programs_may_run_short_of(native: Host) -> None:
    """Memory is given by the limit, and need not be there: that is a note, which is recorded, and no refusal."""
    if "memory" not in native.probe.enforces:
        pytest.skip(str(native.probe.notes))
    tests = FunctionTests(prompt=PROMPT, entry_point="running_max", test=TEST, timeout=1.0)
    task = Task(id="one", instruction=PROMPT, judge=tests)
    facts = await host_facts(native, [task], Limits(memory=1 << 50), sandboxes=3)
    assert any("by their limits: if they use what they may, there is room for 0 of 4" in note for note in facts.notes)
    with pytest.raises(Refused, match="1000001 sandboxes of runtime 'native' at one time refused: "):
        await host_facts(native, [task], sandboxes=1_000_000)
