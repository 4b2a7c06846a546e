"""The life of a sandbox: one way, always to the end, whoever interrupts it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import weakref
from typing import get_args

import anyio
import pytest
from tests.sandbox.conftest import PLAIN, alive

from proofbox.errors import CreateFailed, InvalidInput, SandboxLost
from proofbox.model.outcome import Exited
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.sandbox import lifecycle
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host, open_sandbox


def test_every_state_leads_to_the_end_and_none_leads_back() -> None:
    """The table is total, and without a cycle: no sandbox is used twice."""
    assert set(lifecycle.MOVES) == set(get_args(lifecycle.State))
    for state in lifecycle.MOVES:
        reached: set[str] = set()
        edge = set(lifecycle.MOVES[state])
        while edge:
            reached |= edge
            edge = {after for each in edge for after in lifecycle.MOVES[each]} - reached
        assert state not in reached
        assert state == "ended" or "ended" in reached


async def test_importing_the_package_loads_nothing_of_it() -> None:
    """The public names are loaded where they are used, and every one of them is there."""
    code = (
        "import sys, proofbox\nassert not [m for m in sys.modules if m.startswith('proofbox.')]\n"
        "assert not [n for n in proofbox.__all__ if getattr(proofbox, n) is None]\nprint('ok')"
    )
    done = await anyio.run_process([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": "src"})
    assert done.stdout == b"ok\n"


async def test_each_phase_is_timed(fake_host: Host) -> None:
    """Where the time of a sandbox went is recorded, its end included."""
    async with fake_host.open_sandbox(PLAIN) as box:
        assert box.live
        assert set(box.timings) == {"create", "start", "connect"}
    assert set(box.timings) == {"create", "start", "connect", "destroy"}
    assert not box.live


async def test_nothing_of_it_waits_for_the_garbage_collector(fake_host: Host) -> None:
    """Thousands of lives a minute leave no rings of objects, which a collector would look for again and again."""
    async with fake_host.open_sandbox(PLAIN):
        pass
    gc.collect()
    gc.disable()
    try:
        async with fake_host.open_sandbox(PLAIN) as box:
            assert (await box.run("echo x")).ok
            life = weakref.ref(box._life)
        del box
        for _ in range(100):
            if life() is None:
                break
            await anyio.sleep(0.01)
        assert life() is None
    finally:
        gc.enable()


async def test_closing_is_idempotent_and_tells_who_waits(fake_host: Host) -> None:
    """A command that runs when its sandbox is closed is lost, not ended; closing again does nothing."""
    async with fake_host.open_sandbox(PLAIN) as box:
        command = await box.start("sleep 60")
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(box.aclose)
        with pytest.raises(SandboxLost) as caught:
            await command.wait()
        assert caught.value.reason == "cancelled"
        await box.aclose()
        with pytest.raises(SandboxLost):
            await box.run("true")


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.05])
async def test_an_opening_that_is_cancelled_leaves_nothing(fake: FakeRuntime, fake_host: Host, moment: float) -> None:
    """In whatever step; the fixture looks for what is left."""
    fake.scripts = lambda spec: Faults(boot_delay=5.0)
    with anyio.move_on_after(moment):
        async with fake_host.open_sandbox(PLAIN):
            pytest.fail("it cannot be up")


async def test_a_step_that_takes_too_long_is_named(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the phase as the reason."""
    monkeypatch.setattr(lifecycle, "CREATE_SECONDS", 0.05)
    monkeypatch.setattr(lifecycle, "HELLO_SECONDS", 0.05)
    script = {"create": Faults(create_hangs=True), "connect": Faults(boot_delay=5.0)}
    fake.scripts = lambda spec: script[spec.id]
    for phase in script:
        with pytest.raises(CreateFailed) as caught:
            async with fake_host.open_sandbox(PLAIN, id=phase):
                pass
        assert caught.value.reason == phase


async def test_it_may_be_opened_and_closed_in_different_tasks(fake_host: Host) -> None:
    """Frameworks do that; nothing of a sandbox belongs to a task."""
    opened: list[Sandbox] = []
    context = fake_host.open_sandbox(PLAIN)

    async def opening() -> None:
        opened.append(await context.__aenter__())

    async with anyio.create_task_group() as group:
        group.start_soon(opening)
    assert (await opened[0].run("echo x")).ok
    async with anyio.create_task_group() as group:
        group.start_soon(context.__aexit__, None, None, None)
    assert not opened[0].live


async def test_a_guest_that_is_killed_is_told_by_its_signal(box: Sandbox) -> None:
    """Not as a broken pipe."""
    command = await box.start("sleep 7654")
    parents = await box.run("sed 's/.*) . //; s/ .*//' /proc/$PPID/stat")
    os.kill(int(parents.stdout), signal.SIGKILL)
    with pytest.raises(SandboxLost, match="signal 9"):
        await command.wait()
    assert await box.wait_lost(5) is not None
    for _ in range(500):  # the kernel ends what the guest's death orphans, without telling us when
        if not await alive("7654"):
            return
        await anyio.sleep(0.02)
    raise AssertionError("what the guest ran outlives it")


async def test_a_cancelled_command_is_gone_before_the_call_returns(box: Sandbox) -> None:
    """With its tree, and the sandbox goes on."""
    with anyio.move_on_after(0.2) as scope:
        await box.run("setsid sleep 8765 & sleep 8765")
    assert scope.cancelled_caught
    assert not await alive("8765")
    assert (await box.run("exit 4")).outcome == Exited(4)


async def test_being_cancelled_again_and_again_leaves_no_half_killed_command(process_host: Host) -> None:
    """asyncio's own cancellation goes through every shield: then the sandbox itself is ended."""
    async with process_host.open_sandbox(PLAIN) as box:
        task = asyncio.get_running_loop().create_task(box.run("sleep 9876"))
        await anyio.sleep(0.1)
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        if (lost := await box.wait_lost(1)) is None:
            assert (await box.run("true")).ok
        else:
            assert lost.reason == "cancelled"
    assert not await alive("9876")


def test_the_other_event_loop_serves_as_well() -> None:
    """Nothing here is made for asyncio alone."""

    async def main() -> str:
        async with open_sandbox(PLAIN, runtime="process", allow_unisolated=True) as box:
            await box.write("f", b"x" * 500_000)
            assert len(await box.read("f")) == 500_000
            slow = await box.run("sleep 9", timeout=0.1)
            assert slow.returncode is None
            return (await box.run(["cat"], stdin="trio")).stdout

    assert anyio.run(main, backend="trio") == "trio"


async def test_a_name_of_a_template_must_be_one(fake_host: Host) -> None:
    """An empty one is the caller's mistake."""
    with pytest.raises(InvalidInput):
        async with fake_host.open_sandbox(""):
            pass
