"""Operation ids: nothing that was done once under an id is done again."""

from __future__ import annotations

import anyio
import pytest
from tests.sandbox.conftest import PLAIN

from proofbox.errors import InvalidInput, OperationFailed, SandboxLost
from proofbox.runtimes.fake import FakeCommand, FakeRuntime
from proofbox.sandbox import ops
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.sandbox.result import CommandResult


@pytest.fixture
def ran(fake: FakeRuntime) -> list[str]:
    """The arguments of each ``count-me`` that truly ran."""
    seen: list[str] = []

    async def count_me(command: FakeCommand) -> int:
        seen.append(" ".join(command.args[1:]))
        await anyio.sleep(0.05)
        await command.write(1, b"ran\n")
        return len(seen)

    fake.programs["count-me"] = count_me
    return seen


async def test_a_repetition_gets_the_first_result(fake_host: Host, ran: list[str]) -> None:
    """The same id and the same command: the same answer, and one run."""
    async with fake_host.open_sandbox(PLAIN) as box:
        first = await box.run("count-me a", op="one")
        again = await box.run("count-me a", op="one")
        other = await box.run("count-me a", op="two")
    assert first is again
    assert (first.returncode, other.returncode) == (1, 2)
    assert ran == ["a", "a"]


async def test_a_repetition_waits_for_the_one_that_runs(fake_host: Host, ran: list[str]) -> None:
    """Two at once under one id are one command."""
    results: list[CommandResult] = []

    async def call(box: Sandbox) -> None:
        results.append(await box.run("count-me a", op="one"))

    async with fake_host.open_sandbox(PLAIN) as box, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(call, box)
    assert ran == ["a"]
    assert all(result is results[0] for result in results)


async def test_an_id_stands_for_one_command(fake_host: Host, ran: list[str]) -> None:
    """Other arguments, or another stdin, under a used id are the caller's mistake."""
    async with fake_host.open_sandbox(PLAIN) as box:
        await box.run("count-me a", op="one")
        for other in ({"env": {"A": "b"}}, {"timeout": 5.0}, {"stdin": b"x"}):
            with pytest.raises(InvalidInput, match="'one'"):
                await box.run("count-me a", op="one", **other)
        with pytest.raises(InvalidInput, match="'one'"):
            await box.run("count-me b", op="one")
        with pytest.raises(InvalidInput, match="operation id"):
            await box.run("count-me b", op="")
    assert ran == ["a"]


async def test_a_cancelled_operation_is_not_run_again(fake_host: Host, ran: list[str]) -> None:
    """Half of it may have happened, so the id is used up."""
    async with fake_host.open_sandbox(PLAIN) as box:
        with anyio.move_on_after(0.02):
            await box.run("count-me a", op="one")
        with pytest.raises(OperationFailed, match="cancelled"):
            await box.run("count-me a", op="one")
    assert ran == ["a"]


async def test_a_lost_operation_stays_lost(fake_host: Host, ran: list[str]) -> None:
    """The error is the result."""
    async with fake_host.open_sandbox(PLAIN) as box:
        async with anyio.create_task_group() as group:

            async def call() -> None:
                with pytest.raises(SandboxLost):
                    await box.run("count-me a", op="one")

            group.start_soon(call)
            await anyio.sleep(0.02)
            await box.aclose()
        with pytest.raises(SandboxLost):
            await box.run("count-me a", op="one")


async def test_big_results_are_given_up_before_memory_is(
    fake_host: Host, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id stays known: what was forgotten is an error, not a second run."""
    monkeypatch.setattr(ops, "REMEMBERED", 4)
    async with fake_host.open_sandbox(PLAIN) as box:
        await box.run("count-me a", op="one")
        await box.run("count-me b", op="two")
        with pytest.raises(OperationFailed, match="too big"):
            await box.run("count-me a", op="one")
        assert (await box.run("count-me b", op="two")).stdout == "ran\n"
    assert ran == ["a", "b"]
