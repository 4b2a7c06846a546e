"""Whose doing a time limit was, for real programs at every runtime. ``scripts/bench blame`` is the long version."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from proofbox.model.outcome import HitLimit, Usage
from proofbox.sandbox.host import Host
from proofbox.testing import blame
from proofbox.testing.blame import Experiment

SECONDS = 0.8

pytestmark = pytest.mark.anyio

COMPUTING = ("busy loop in Python", "short-lived children")
BLOCKED = (
    "sleep",
    "cat on an open stdin",
    "deadlock of processes",
    "a FIFO that nobody opens",
    "stops itself",
    "a stopped pipeline",
)
BLOCKED_LATER = ("deadlock of threads", "computes, then blocks")
STARVED = ("busy loop", "a build", "a pipeline")


@pytest.fixture
def idle(host: Host) -> None:
    """A sandbox can have the processor before all others."""
    if reason := blame.no_first_in_line():
        pytest.skip(reason)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", COMPUTING)
async def test_who_computes_until_the_limit_did_it_itself(
    host: Host, experiments: dict[str, Experiment], data: Path, name: str
) -> None:
    """One loop, and thousands of children that are gone before anybody has seen them."""
    hit = await blame.run(host, experiments[name], SECONDS, data)
    assert hit.cause == "task", hit.evidence


@pytest.mark.usefixtures("idle")
async def test_who_uses_up_its_own_quota_did_it_itself(
    host: Host, experiments: dict[str, Experiment], data: Path
) -> None:
    """It is held back nearly all the time, by nobody else's doing."""
    if "cpus" not in host.probe.enforces:
        pytest.skip("no limit on CPU time here")
    for _ in range(3):
        hit = await blame.run(host, experiments["its own quota"], SECONDS, data)
        if blame.is_fair(experiments["its own quota"], hit):
            break
    else:
        pytest.skip("others use the processors of this host all the time")
    assert hit.cause == "task", hit.evidence
    assert hit.evidence is not None
    assert (hit.evidence.throttled or 0) > 0


@pytest.mark.parametrize("name", BLOCKED)
async def test_who_waits_for_what_never_comes_hangs(
    host: Host, experiments: dict[str, Experiment], data: Path, name: str
) -> None:
    """Whatever else the host does meanwhile; where it is so busy that the start takes half of the time, with more."""
    for seconds in (SECONDS, 5 * SECONDS):
        hit = await blame.run(host, experiments[name], seconds, data)
        if hit.cause == "hung":
            break
    assert hit.cause == "hung", hit.evidence


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", BLOCKED_LATER)
async def test_who_computes_first_and_then_blocks_hangs(
    host: Host, experiments: dict[str, Experiment], data: Path, name: str
) -> None:
    """What counts is where it was when the time ran out."""
    hit = await blame.run(host, experiments[name], SECONDS, data)
    assert hit.cause == "hung", hit.evidence


async def test_a_busy_host_is_never_the_programs_fault(
    host: Host, experiments: dict[str, Experiment], data: Path
) -> None:
    """Ten times more work than processors: who computes was not let, and who sleeps hangs all the same."""
    with blame.busy_host():
        found = {n: await blame.run(host, experiments[f"{n}, busy host"], SECONDS, data) for n in (*STARVED, "sleep")}
    assert {name: hit.cause for name, hit in found.items()} == {**dict.fromkeys(STARVED, "host"), "sleep": "hung"}, (
        found
    )


async def test_a_slow_disk_is_the_hosts(host: Host, experiments: dict[str, Experiment], data: Path) -> None:
    """A build whose files come slowly."""
    if reason := blame.no_slow_disk(data):
        pytest.skip(reason)
    if host.level == "none":
        pytest.skip("the process runtime has no volumes")
    hit = await blame.run(host, experiments["a build on a slow disk"], SECONDS, data)
    assert hit.cause == "host", hit.evidence


async def test_a_limit_tells_when_which_command_and_what_it_was_blocked_in(host: Host) -> None:
    """The record has the configured and the measured value, the moment, and the kernel's word of the place."""
    async with host.open_sandbox("host") as box:
        await box.run("true")
        for seconds in (0.4, 4.0):  # the longer one for hosts on which the program has not even started before
            command = await box.start("exec cat", stdin=True, timeout=seconds)
            outcome = (await command.wait()).outcome
            assert isinstance(outcome, HitLimit)
            hit: HitLimit = outcome
            if hit.evidence is not None and hit.evidence.states == {"read": 1}:
                break
    assert (hit.kind, hit.limit, hit.command) == ("command_wall", seconds, command.id)
    assert hit.used is not None
    assert seconds <= hit.used < 60
    assert hit.at is not None
    seen = hit.evidence
    assert seen is not None
    assert seen.states == {"read": 1}, seen
    if os.geteuid() == 0:
        assert "pipe_read" in seen.blocked[0]


async def test_a_neighbour_does_not_make_a_blocked_command_a_busy_one(host: Host) -> None:
    """What computes in the background of the same sandbox says nothing about the command that hangs."""
    async with host.open_sandbox("host") as box:
        other = await box.start("while :; do :; done", timeout=120)
        for seconds in (0.5, 5.0):  # the longer one for hosts on which it is hardly looked at before
            run = await box.run("sleep 60", timeout=seconds)
            started = await (await box.start("sleep 60", timeout=seconds)).wait()
            outcomes = [each for each in (run.outcome, started.outcome) if isinstance(each, HitLimit)]
            assert len(outcomes) == 2
            if {each.cause for each in outcomes} == {"hung"}:
                break
        await other.kill()
    assert [each.cause for each in outcomes] == ["hung", "hung"], outcomes


async def test_a_short_command_is_never_looked_at(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from outside while a command runs that ends before anything could be learnt."""
    async with host.open_sandbox("host") as box:
        looks = []
        observe = box._life.observe

        def counted() -> tuple[Sequence[int], Usage] | None:
            looks.append(1)
            return observe()

        monkeypatch.setattr(box._life, "observe", counted)
        for _ in range(5):
            await box.run("true", timeout=60)
        assert looks == []
        await box.run("sleep 1", timeout=0.5)
        assert looks
