"""A guest that breaks, lies or falls silent costs its own sandbox, and nothing else."""

from __future__ import annotations

from typing import get_args

import anyio
import pytest

from proofbox.errors import CreateFailed, ProtocolViolation, Refused, SandboxLost
from proofbox.model.limits import Limits
from proofbox.model.outcome import Exited, HitLimit, Lost
from proofbox.model.spec import SandboxSpec
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.runtimes.fake.faults import Lie
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host


async def outcome_or_error(box: Sandbox, command: str, timeout: float | None = None) -> Lost | SandboxLost:
    """How the loss of a sandbox is told: as the outcome of what ran in it, or as an error. Anything else fails."""
    with anyio.fail_after(30):
        try:
            # Without a reader: what the guest sends on its own comes without credit.
            job = await box.start(command, timeout=timeout, keep=None)
            outcome = (await job.wait()).outcome
        except SandboxLost as lost:
            return lost
    assert isinstance(outcome, Lost), outcome
    return outcome


@pytest.mark.parametrize("lie", get_args(Lie))
async def test_a_lie_ends_the_sandbox_that_told_it(fake: FakeRuntime, fake_host: Host, lie: Lie) -> None:
    """Each way to leave the protocol is seen, called a protocol violation, and leaves another sandbox alone."""
    fake.scripts = lambda spec: Faults(lie=lie) if spec.id == "liar" else Faults()
    async with fake_host.open_sandbox(id="liar") as liar, fake_host.open_sandbox() as honest:
        waiting = await honest.start("sleep 0.1; exit 5")
        if lie not in ("end_twice", "data_after_end"):  # in these the command itself ends honestly, before the lie
            told = await outcome_or_error(liar, "sleep 60")
            assert told.reason == "protocol", told
        else:
            await (await liar.start("echo x", keep=None)).wait()
        assert isinstance(await liar.wait_lost(20), ProtocolViolation)
        with pytest.raises(SandboxLost) as caught:
            await liar.run("echo never")
        assert caught.value.reason == "protocol"
        assert (await waiting.wait()).outcome == Exited(5)


@pytest.mark.parametrize("where", ["command", "frame"])
async def test_a_lost_connection_is_a_lost_sandbox(fake: FakeRuntime, fake_host: Host, where: str) -> None:
    """Between frames or inside one: what ran is lost, never exited, and the next command says so at once."""
    fake.scripts = lambda spec: Faults(lost="frame" if where == "frame" else "command", at=2)
    async with fake_host.open_sandbox() as box:
        assert (await box.run("echo first")).stdout == "first\n"
        await outcome_or_error(box, "echo second")
        with pytest.raises(SandboxLost):
            await box.run("echo third")


async def test_all_commands_of_a_lost_sandbox_are_told(fake: FakeRuntime, fake_host: Host) -> None:
    """Whoever waits for a command in it learns of the loss; nobody waits for ever."""
    fake.scripts = lambda spec: Faults(lost="command", at=4)
    told = []

    async def one(box: Sandbox) -> None:
        told.append(await outcome_or_error(box, "sleep 60"))

    async with fake_host.open_sandbox() as box, anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(one, box)
    assert len(told) == 4


async def test_a_guest_that_never_answers_does_not_outlast_the_deadline(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has a clock of its own: a silent guest is lost soon after the command's deadline."""
    monkeypatch.setattr("proofbox.sandbox.commands.ANSWER_SECONDS", 0.2)
    fake.scripts = lambda spec: Faults(silent=True)
    async with fake_host.open_sandbox() as box:
        with anyio.fail_after(30):
            try:
                outcome = (await box.run("echo x", timeout=0.1)).outcome
            except SandboxLost:
                outcome = Lost("guest")
        assert isinstance(outcome, Lost) or (isinstance(outcome, HitLimit) and not outcome.confirmed)


async def test_an_end_after_the_deadline_is_not_a_success(fake: FakeRuntime, fake_host: Host) -> None:
    """A guest that lets a command run past its deadline and calls it exited is not believed."""
    fake.scripts = lambda spec: Faults(late=0.6)
    async with fake_host.open_sandbox() as box:
        with anyio.fail_after(30):
            try:
                outcome = (await box.run("sleep 60", timeout=0.2)).outcome
            except SandboxLost:
                outcome = Lost("guest")
        assert isinstance(outcome, Lost | HitLimit), outcome


async def test_a_failed_boot_names_the_step(fake: FakeRuntime, fake_host: Host) -> None:
    """What the launcher or the runtime could not do is in the error, and nothing is left."""
    fake.scripts = lambda spec: Faults(boot_fails="launch: mount overlay: No space left on device")
    with pytest.raises(CreateFailed, match="mount overlay: No space left on device"):
        async with fake_host.open_sandbox():
            pass
    fake.scripts = lambda spec: Faults(create_fails="cgroup")
    with pytest.raises(CreateFailed, match="cgroup"):
        async with fake_host.open_sandbox():
            pass
    assert fake.live == {}


async def test_another_version_is_refused(fake: FakeRuntime, fake_host: Host) -> None:
    """A guest of another protocol version does not become a sandbox."""
    fake.scripts = lambda spec: Faults(version=2)
    with pytest.raises(SandboxLost, match="version"):
        async with fake_host.open_sandbox():
            pass
    assert fake.live == {}


async def test_a_slow_boot_is_only_slow(fake: FakeRuntime, fake_host: Host) -> None:
    """The first command waits for it, and its own clock starts when it does."""
    fake.scripts = lambda spec: Faults(boot_delay=0.3)
    async with fake_host.open_sandbox() as box:
        result = await box.run("echo up", timeout=0.2)
    assert (result.stdout, result.outcome) == ("up\n", Exited(0))


@pytest.mark.parametrize("faults", [Faults(create_hangs=True), Faults(boot_delay=60.0)])
async def test_a_creation_that_hangs_can_be_given_up(fake: FakeRuntime, fake_host: Host, faults: Faults) -> None:
    """Cancelling it returns, and nothing of it is left."""
    fake.scripts = lambda spec: faults
    with anyio.fail_after(20), anyio.move_on_after(0.1) as scope:
        async with fake_host.open_sandbox() as box:
            await box.run("echo never")
    assert scope.cancelled_caught
    assert fake.live == {}


async def test_a_refusal_of_the_runtime_comes_out_as_it_is(fake: FakeRuntime, fake_host: Host) -> None:
    """With its sentence."""
    fake.scripts = lambda spec: Faults(refuse="no such limit here")
    with pytest.raises(Refused, match="no such limit here"):
        async with fake_host.open_sandbox():
            pass


async def test_a_destroy_that_fails_once_is_done_again(fake: FakeRuntime, fake_host: Host) -> None:
    """A failure of the clean-up does not cost the result, and is repeated until it works."""
    fake.scripts = lambda spec: Faults(destroy_fails=1)
    async with fake_host.open_sandbox() as box:
        result = await box.run("echo done")
    assert result.stdout == "done\n"
    with anyio.move_on_after(10):
        while fake.live:  # noqa: ASYNC110 - the repetition has no event to wait for
            await anyio.sleep(0.02)
    assert fake.live == {}


async def test_the_kernels_counter_makes_an_exit_a_memory_limit(fake: FakeRuntime, fake_host: Host) -> None:
    """A command that exits 0 while the counter rose is reported with it."""
    fake.scripts = lambda spec: Faults(oom_kills=2, denials=3)
    async with fake_host.open_sandbox(limits=Limits(memory=64 << 20, processes=10)) as box:
        result = await box.run("echo fine")
        assert (result.usage.oom_kills, result.usage.process_denials) == (2, 3)
        assert result.stdout == "fine\n"
        assert (await box.run("echo again")).usage.oom_kills == 0


async def test_one_hanging_creation_holds_up_no_other(fake: FakeRuntime, fake_host: Host) -> None:
    """Sandboxes are made, used and destroyed beside one that hangs in its creation."""

    def script(spec: SandboxSpec) -> Faults:
        return Faults(create_hangs=spec.id == "stuck")

    fake.scripts = script
    async with anyio.create_task_group() as group:

        async def stuck() -> None:
            async with fake_host.open_sandbox(id="stuck"):
                pass

        group.start_soon(stuck)
        await anyio.sleep(0.05)
        for _ in range(5):
            async with fake_host.open_sandbox() as box:
                assert (await box.run("echo on")).ok
        group.cancel_scope.cancel()
