"""A deadline ends the whole tree, whatever it does to escape, and what it printed before is kept."""

from __future__ import annotations

import anyio
import pytest

from proofbox.model.limits import Limits
from proofbox.model.outcome import Exited, HitLimit
from proofbox.sandbox.api import Sandbox
from proofbox.testing.needs import OpenBox, alive, check

DEADLINES = (0.25, 1.0, 4.0, 16.0)
"""Seconds; a longer one for hosts so busy that nothing had come before the shorter one."""

ESCAPES = {
    "a plain child": "sleep {marker} & wait",
    "a new session": "setsid sleep {marker} & wait",
    "a double fork": "(setsid sh -c 'sleep {marker} & sleep {marker}' &) ; sleep {marker}",
    "nohup": "nohup sleep {marker} > /dev/null 2>&1 & sleep {marker}",
    "ignored signals": "trap '' TERM INT HUP QUIT; sh -c 'trap \"\" TERM; sleep {marker}; sleep {marker}'",
    "a stopped process": "sleep {marker} & kill -STOP $!; kill -STOP $$",
    "a wait for a pipe that nobody opens": "mkfifo f; sh -c 'cat f # {marker}' & cat f # {marker}",
    "a busy loop": "sh -c 'while :; do :; done # {marker}' & while :; do :; done",
    "an orphan": "sh -c 'sleep {marker} & exec sleep {marker}' & kill -9 $!; sleep {marker}",
}


@pytest.mark.parametrize("escape", ESCAPES)
@check()
async def test_a_deadline_ends_the_whole_tree(box: Sandbox, place: str, marker: str, escape: str) -> None:
    """The limit is named with its value, the output until then is there, and no process of it survives."""
    text = "rm -f f; printf partial; printf problem >&2; " + ESCAPES[escape].format(marker=marker)
    for seconds in DEADLINES:
        result = await box.run(text, timeout=seconds, cwd=place)
        assert isinstance(result.outcome, HitLimit)
        assert (result.outcome.kind, result.outcome.limit) == ("command_wall", seconds)
        assert result.outcome.elapsed >= seconds
        assert result.outcome.confirmed
        assert result.returncode is None
        assert await alive(box, marker) == []
        if result.stderr:
            break
    assert (result.stdout, result.stderr) == ("partial", "problem")


@check()
async def test_nothing_happens_after_a_deadline(box: Sandbox, place: str) -> None:
    """A heartbeat that a grandchild writes stops for good."""
    await box.write(f"{place}/beat", b"")
    beat = f"setsid sh -c 'while :; do echo x >> {place}/beat; sleep 0.01; done' & sleep 60"
    for seconds in DEADLINES:
        assert isinstance((await box.run(beat, timeout=seconds)).outcome, HitLimit)
        if before := await box.read(f"{place}/beat"):
            break
    assert before, "the grandchild never ran"
    await anyio.sleep(0.15)
    assert await box.read(f"{place}/beat") == before


@check()
async def test_a_grace_time_lets_the_program_finish(box: Sandbox) -> None:
    """SIGTERM comes first; what is printed in answer is kept, and it is still the limit that ended it."""
    text = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done"
    for seconds in DEADLINES:
        result = await box.run(text, timeout=seconds, grace=20)
        assert isinstance(result.outcome, HitLimit)
        if result.stdout:
            break
    assert result.stdout == "up\nbye\n"


@check()
async def test_a_grace_time_that_is_not_used_ends_in_a_kill(box: Sandbox, marker: str) -> None:
    """A program that ignores SIGTERM is gone after the grace time."""
    result = await box.run(f"trap '' TERM; sleep {marker}; sleep {marker}", timeout=0.2, grace=0.2)
    assert isinstance(result.outcome, HitLimit)
    assert result.outcome.elapsed >= 0.2
    assert await alive(box, marker) == []


@check()
async def test_a_deadline_leaves_other_commands_alone(box: Sandbox) -> None:
    """Only the tree of the command whose time is over is ended, and the sandbox goes on."""
    other = await box.start("sleep 0.5; echo whole; exit 8")
    assert isinstance((await box.run("sleep 60", timeout=0.1)).outcome, HitLimit)
    assert (await box.run("echo next")).stdout == "next\n"
    result = await other.wait()
    assert (result.outcome, result.stdout) == (Exited(8), "whole\n")


@check()
async def test_the_same_deadline_gives_the_same_outcome_each_time(box: Sandbox) -> None:
    """There is one way to say it: kind and value, never sometimes an exit code."""
    outcomes = [(await box.run("sleep 999", timeout=0.1)).outcome for _ in range(5)]
    assert {(type(o), o.kind, o.limit) for o in outcomes if isinstance(o, HitLimit)} == {
        (HitLimit, "command_wall", 0.1)
    }


@pytest.mark.parametrize(("program", "cause"), [("while :; do :; done", "task"), ("sleep 60", "hung")])
@check(level="container")
async def test_whose_doing_a_deadline_was_is_told(box: Sandbox, program: str, cause: str) -> None:
    """With a kernel of the sandbox's own too, or a score would depend on the level. A busy host is told as one."""
    causes: list[str] = []
    for seconds in DEADLINES[1:]:
        hit = (await box.run(program, timeout=seconds)).outcome
        assert isinstance(hit, HitLimit)
        causes.append(hit.cause)
        if hit.cause == cause:
            break
    assert causes[-1] in (cause, "host"), causes


@check()
async def test_a_command_that_ends_in_time_has_its_own_outcome(box: Sandbox) -> None:
    """A quick death by a signal under a long deadline is not a timeout."""
    result = await box.run("kill -TERM $$", timeout=300)
    assert result.returncode == 143
    assert not isinstance(result.outcome, HitLimit)


@check(enforces=("command_wall",))
async def test_a_limit_for_every_command_counts_where_the_command_has_none(open_box: OpenBox) -> None:
    """The sandbox's own limit on commands ends them; a command's own deadline is another one."""
    for seconds in DEADLINES:
        async with open_box(limits=Limits(command_wall=seconds)) as box:
            result = await box.run("echo up; sleep 60")
            assert isinstance(result.outcome, HitLimit)
            assert (result.outcome.kind, result.outcome.limit) == ("command_wall", seconds)
            if result.stdout:
                break
    assert result.stdout == "up\n"


@check(enforces=("processes",))
async def test_a_tree_that_keeps_forking_is_ended(open_box: OpenBox, marker: str) -> None:
    """Chains of processes that each start a successor in a new session and end are gone after the deadline."""
    async with open_box(limits=Limits(processes=100)) as box:
        await box.write("/tmp/beat", b"")
        await box.write("/tmp/chain", "echo x >> /tmp/beat; setsid sh /tmp/chain $1 & exec sleep 0.002")
        chains = f"for i in 1 2 3 4 5 6 7 8; do sh /tmp/chain {marker} & done 2>/dev/null; exec sleep 60"
        for seconds in DEADLINES:
            result = await box.run(chains, timeout=2 * seconds)
            assert isinstance(result.outcome, HitLimit)
            assert result.outcome.confirmed
            beats = await box.read("/tmp/beat")
            if beats.count(b"x") > 8:
                break
        assert beats.count(b"x") > 8, "the chains ended by themselves, and the check shows nothing"
        await box.run("sleep 0.1")
        assert await box.read("/tmp/beat") == beats
        assert await alive(box, marker) == []
