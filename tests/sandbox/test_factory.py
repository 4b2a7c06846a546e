"""Many sandboxes asked for at once: some are made at a time, in order, and the others wait at nobody's expense."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from tests.sandbox.conftest import PLAIN

from proofbox.errors import CreateFailed
from proofbox.kit.clock import Clock
from proofbox.model.spec import SandboxSpec
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.sandbox import lifecycle
from proofbox.sandbox.factory import AT_ONCE
from proofbox.sandbox.host import Host


async def test_a_burst_of_starts_is_made_some_at_a_time(fake: FakeRuntime, fake_host: Host) -> None:
    """Of 160 openings at once never more than the bound are on their way up, and all get there; the live ones do not
    count.
    """
    most, starting = 0, 0

    def script(spec: SandboxSpec) -> Faults:
        nonlocal most, starting
        starting += 1
        most = max(most, starting)
        return Faults(boot_delay=0.001)

    fake.scripts = script
    everyone_is_up, up = anyio.Event(), 0

    async def one() -> None:
        nonlocal up, starting
        async with fake_host.open_sandbox(PLAIN) as box:
            starting -= 1
            up += 1
            if up == 160:
                everyone_is_up.set()
            await everyone_is_up.wait()
            assert (await box.run("echo x")).ok

    async with anyio.create_task_group() as group:
        for _ in range(160):
            group.start_soon(one)
    assert most == AT_ONCE < 160


async def test_waiting_for_a_place_counts_against_no_limit(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither against that of the step for which the place is, nor against the clock of who opens it."""
    monkeypatch.setattr(lifecycle, "CREATE_SECONDS", 0.4)
    fake.scripts = lambda spec: Faults(create_hangs=spec.id.startswith("hung"))
    clock = Clock(0.2)
    hung = 0

    async def hang(number: int) -> None:
        nonlocal hung
        with pytest.raises(CreateFailed, match="creating for more than"):
            async with fake_host.open_sandbox(PLAIN, id=f"hung-{number}"):
                pass
        hung += 1

    async def wait() -> None:
        with clock.run():
            async with fake_host.open_sandbox(PLAIN):
                pass

    async with anyio.create_task_group() as group:
        for number in range(AT_ONCE):
            group.start_soon(hang, number)
        while len(fake_host._factory.lives) < AT_ONCE:
            await anyio.lowlevel.checkpoint()
        group.start_soon(wait)
    assert hung == AT_ONCE
    assert not clock.expired


async def test_one_that_is_given_up_in_the_queue_was_never_made(fake: FakeRuntime, fake_host: Host) -> None:
    """It takes nobody's place, and its id is free again."""
    fake.scripts = lambda spec: Faults(create_hangs=spec.id.startswith("hung"))

    async def hang(number: int) -> None:
        async with fake_host.open_sandbox(PLAIN, id=f"hung-{number}"):
            pytest.fail("it cannot be up")

    async with anyio.create_task_group() as group:
        for number in range(AT_ONCE):
            group.start_soon(hang, number)
        while len(fake_host._factory.lives) < AT_ONCE:
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0.05) as scope:
            async with fake_host.open_sandbox(PLAIN, id="queued"):
                pytest.fail("there is no place for it")
        assert scope.cancelled_caught
        assert len(fake_host._factory.lives) == AT_ONCE
        group.cancel_scope.cancel()
    async with fake_host.open_sandbox(PLAIN, id="queued") as box:
        assert box.live
    assert not fake_host._factory.lives
