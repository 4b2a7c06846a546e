"""Warm pools: what a claim gets and never gets, and what becomes of a pool whose members or host are in trouble."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.sandbox.conftest import PLAIN

from proofbox.errors import Busy, CreateFailed, InvalidInput, Refused, SandboxLost
from proofbox.host.memory import available_memory
from proofbox.kit.clock import Clock
from proofbox.model.limits import Limits
from proofbox.model.outcome import HitLimit
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.sandbox import lifecycle, members, pool
from proofbox.sandbox.host import Host
from proofbox.sandbox.pool import Pool
from proofbox.sandbox.pool_stats import latency
from proofbox.templates.store import open_store


async def until(true: Callable[[], object]) -> None:
    """Waits for it; a condition that does not come true in a long time fails the test."""
    for _ in range(4000):
        if true():
            return
        await anyio.sleep(0.005)
    pytest.fail("it never became so")


class Script:
    """The first creations of the runtime meet with these faults, one each; the later ones with ``others``."""

    def __init__(self, fake: FakeRuntime, *first: Faults, others: Faults | None = None) -> None:
        self.first = list(first)
        self.others = others or Faults()
        self.asked = 0
        fake.scripts = self

    def __call__(self, spec: SandboxSpec) -> Faults:
        self.asked += 1
        return self.first.pop(0) if self.first else self.others


async def one_claim(of: Pool, **asked: Any) -> str:
    """The id of the sandbox that served it."""
    async with of.claim(**asked) as box:
        assert (await box.run("echo hi")).stdout == "hi\n"
        return box.id


async def test_a_member_is_handed_out_once_and_destroyed_after(fake: FakeRuntime, fake_host: Host) -> None:
    """Every claim gets a sandbox of its own, which is gone at the end of its block, and the pool fills up again."""
    async with fake_host.pool(PLAIN, size=(3, 3)) as of:
        assert (await of.ready(30)).ready == 3
        members_then = set(fake.live)
        claimed = []
        for _ in range(6):
            claimed.append(await one_claim(of))
            assert claimed[-1] not in fake.live
            assert (await of.ready(30)).state == "ready"
        assert len(set(claimed)) == 6
        assert set(claimed[:3]) == members_then
        stats = of.stats()
    assert (stats.hits, stats.misses, stats.hit_rate, stats.claimed) == (6, 0, 1.0, 0)
    assert stats.warm.p99 >= stats.warm.p50 > 0
    assert stats.cold.p50 == 0
    assert fake.live == {}


@pytest.mark.parametrize(
    "other",
    [
        {"limits": Limits(processes=7)},
        {"limits": Limits(processes=9000)},
        {"env": {"A": "2"}},
        {"cwd": "/elsewhere"},
        {"user": "0"},
        {"hostname": "another"},
        {"template": Template(digest="sha256:" + "1" * 64, name="plain", layers=(), env={})},
    ],
    ids=str,
)
async def test_who_asks_for_anything_else_gets_no_member(
    fake: FakeRuntime, fake_host: Host, other: dict[str, Any]
) -> None:
    """Neither a weaker nor a stronger one: whatever of the order differs, the sandbox is made as it was asked for."""
    limits = Limits(processes=8)
    async with fake_host.pool(PLAIN, size=(2, 2), limits=limits, env={"A": "1"}, cwd="/here", user="root") as of:
        await of.ready(30)
        standing = set(fake.live)
        async with of.claim(**other) as box:
            assert box.id not in standing
            for name, value in other.items():
                if name == "limits":
                    assert box.spec.limits.processes == value.processes
                if name == "template":
                    assert box.spec.template == value.digest
            assert "claim" in box.timings
        same = await one_claim(of, limits=Limits(processes=8), env={"A": "1"}, cwd="/here")
        assert same in standing
        stats = of.stats()
        assert (stats.other, stats.hits, stats.misses) == (1, 1, 0)


async def test_what_this_host_does_not_offer_is_refused_before_anything_is_made(
    fake: FakeRuntime, fake_host: Host
) -> None:
    """By the pool when it is opened, by a claim when it asks for more."""
    for asked in ({"network": "host"}, {"user": "nobody"}, {"limits": Limits(memory=1)}, {"size": (3, 2)}, {"keep": 0}):
        with pytest.raises((Refused, InvalidInput)):
            async with fake_host.pool(PLAIN, **asked):
                pass
    async with fake_host.pool(PLAIN, size=(1, 1)) as of:
        await of.ready(30)
        with pytest.raises(Refused):
            await one_claim(of, network="host")
        assert of.stats().ready == 1


async def test_one_that_is_still_starting_is_handed_to_nobody(fake: FakeRuntime, fake_host: Host) -> None:
    """The claim gets a sandbox that runs; those that boot are counted as pending and not made again."""
    script = Script(fake, *[Faults(boot_delay=60)] * 2)
    async with fake_host.pool(PLAIN, size=(2, 2)) as of:
        await until(lambda: len(fake.live) == 2)
        starting = set(fake.live)
        assert await one_claim(of) not in starting
        stats = of.stats()
        assert (stats.misses, stats.hits, stats.pending, stats.ready, stats.state) == (1, 0, 2, 0, "filling")
        assert script.asked == 3


@pytest.mark.parametrize("ping", ["silent", "lost", "lie"])
async def test_a_member_that_does_not_answer_goes_and_the_claim_goes_on(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch, ping: Any
) -> None:
    """It is destroyed and counted; the claimant gets the next member, or a cold sandbox, and never that one."""
    monkeypatch.setattr(pool, "CHECK_SECONDS", 0.2)
    Script(fake, Faults(ping=ping))
    async with fake_host.pool(PLAIN, size=(2, 2), at_once=1) as of:
        await of.ready(30)
        bad = next(iter(fake.live))
        assert await one_claim(of) != bad
        stats = of.stats()
        assert stats.unhealthy == 1
        assert stats.hits + stats.misses == 1
        await until(lambda: bad not in fake.live)
        await until(lambda: of.stats().state == "ready")
        assert await one_claim(of) != bad
        assert of.stats().unhealthy == 1


async def test_a_member_that_died_while_it_waited_is_replaced(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to claim it first: what stands is what lives."""
    monkeypatch.setattr(members, "TICK", 0.05)
    monkeypatch.setattr(members, "STEADY_SECONDS", 0.2)
    async with fake_host.pool(PLAIN, size=(2, 2)) as of:
        await of.ready(30)
        dead, *_ = fake.live.values()
        await dead.guest.stop()
        await until(lambda: of.stats().ready < 2)
        await until(lambda: of.stats().ready == 2)
        assert dead.id not in fake.live
        assert of.stats().unhealthy == 1
        assert await one_claim(of) != dead.id
        await until(lambda: not of.stats().error)


@pytest.mark.parametrize("at", ["command", "frame"])
async def test_one_that_is_lost_in_a_command_is_lost_to_its_claimant_alone(
    fake: FakeRuntime, fake_host: Host, at: Any
) -> None:
    """Who had it is told; the next claim is served by another one."""
    Script(fake, Faults(lost=at))
    async with fake_host.pool(PLAIN, size=(2, 2), at_once=1) as of:
        await of.ready(30)
        with pytest.raises(SandboxLost):
            await one_claim(of)
        assert await one_claim(of)
        assert of.stats().hits == 2


async def test_a_refill_makes_few_at_a_time_and_never_more_than_are_wanted(fake: FakeRuntime, fake_host: Host) -> None:
    """A slow boot of twelve members: at most three are on their way, and what is on its way counts as existing."""
    most, whole = 0, 0
    Script(fake, others=Faults(boot_delay=0.02))
    async with fake_host.pool(PLAIN, size=(12, 12), at_once=3) as of:
        while (stats := of.stats()).state == "filling":
            most, whole = max(most, stats.pending), max(whole, stats.pending + stats.ready)
            await anyio.sleep(0.002)
        assert stats.state == "ready"
        assert stats.made == 12
    assert most == 3
    assert whole <= 12


async def test_the_size_follows_the_demand_between_its_bounds(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst that finds too few makes it grow, to what would have served the burst and not beyond the bound; when
    nobody comes it shrinks.
    """
    monkeypatch.setattr(members, "NEED_SECONDS", 0.3)
    monkeypatch.setattr(members, "TICK", 0.05)
    async with fake_host.pool(PLAIN, size=(1, 6), at_once=6) as of:
        await of.ready(30)
        everyone = anyio.Event()

        async def hold() -> None:
            async with of.claim():
                await everyone.wait()

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(hold)
            await until(lambda: of.stats().claimed == 4)
            assert of.stats().wanted == 4
            for _ in range(8):
                group.start_soon(hold)
            await until(lambda: of.stats().claimed == 12)
            assert of.stats().wanted == 6
            everyone.set()
        await until(lambda: of.stats().ready == 6 or of.stats().surplus)
        await until(lambda: of.stats().wanted == 1)
        await until(lambda: of.stats().ready == 1)
        assert of.stats().surplus == 5


async def test_creation_that_fails_again_and_again_is_reported_and_not_stormed(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state says that it does not get on, with the error; tries become rarer; claims raise or try for themselves;
    and when the host is well again so is the pool.
    """
    monkeypatch.setattr(members, "RETRY_MOST", 0.2)
    monkeypatch.setattr(members, "TICK", 0.05)
    monkeypatch.setattr(members, "STEADY_SECONDS", 0.2)
    script = Script(fake, others=Faults(create_fails="mount"))
    async with fake_host.pool(PLAIN, size=(4, 8), at_once=4) as of:
        stats = await of.ready(30)
        assert stats.state == "stuck"
        assert "CreateFailed" in stats.error
        assert "mount" in stats.error
        assert stats.pending <= 1
        assert stats.failed == script.asked <= 8
        with pytest.raises(Busy, match="mount"):
            await one_claim(of, cold=False)
        with pytest.raises(CreateFailed):
            await one_claim(of)
        script.others = Faults()
        assert await one_claim(of)
        await until(lambda: of.stats().state == "ready")
        await until(lambda: not of.stats().error)
        assert await one_claim(of, cold=False)


async def test_creation_that_hangs_is_reported(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error comes from it, and no more are begun."""
    monkeypatch.setattr(members, "STUCK_SECONDS", 0.1)
    script = Script(fake, others=Faults(create_hangs=True))
    async with fake_host.pool(PLAIN, size=(4, 4)) as of:
        assert (await of.ready(30)).state == "stuck"
        assert of.stats().pending == script.asked == 2


async def test_a_step_that_hangs_is_given_up_and_made_again(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each creation has its deadline, in a pool too."""
    monkeypatch.setattr(lifecycle, "CREATE_SECONDS", 0.1)
    Script(fake, Faults(create_hangs=True))
    async with fake_host.pool(PLAIN, size=(1, 1)) as of:
        await until(lambda: of.stats().ready == 1)
        assert of.stats().failed == 1


async def test_members_that_nobody_claims_are_made_anew(
    fake: FakeRuntime, fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None stands longer than ``keep``, none that is older is handed out, and checks do not make them younger."""
    monkeypatch.setattr(members, "TICK", 0.02)
    async with fake_host.pool(PLAIN, size=(2, 2), keep=0.3) as of:
        await of.ready(30)
        first = set(fake.live)
        await until(lambda: of.stats().expired >= 2)
        await until(lambda: of.stats().ready == 2)
        assert await one_claim(of) not in first


async def test_limits_on_time_start_when_it_is_claimed(fake: FakeRuntime, fake_host: Host) -> None:
    """A member that stood longer than its wall and its idle limit is whole, and ends by them as any other would."""
    limits = Limits(wall=0.6, idle=0.4)
    async with fake_host.pool(PLAIN, size=(2, 2), limits=limits) as of:
        await of.ready(30)
        standing = set(fake.live)
        await anyio.sleep(0.8)
        assert set(fake.live) == standing
        begun = anyio.current_time()
        async with of.claim() as box:
            assert box.id in standing
            lost = await box.wait_lost(30)
            assert lost is not None
            assert lost.reason == "idle"
            assert anyio.current_time() - begun >= 0.4
        begun = anyio.current_time()
        async with of.claim() as box:
            assert box.id in standing
            result = await box.run("sleep 60")
            assert isinstance(result.outcome, HitLimit)
            assert result.outcome.kind == "wall"
            assert anyio.current_time() - begun >= 0.6


async def test_the_guests_own_end_waits_for_a_claim_too(process_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest ends itself some time after its wall limit, should the host fail to; for a member that time is longer."""
    monkeypatch.setattr(lifecycle, "LIFE_SLACK", 0.1)
    async with process_host.pool(PLAIN, size=(1, 1), limits=Limits(wall=0.3)) as of:
        assert (await of.ready(30)).ready == 1
        await anyio.sleep(0.8)
        async with of.claim(cold=False) as box:
            assert (await box.run("echo on")).stdout == "on\n"
        assert of.stats().made == 1 + of.stats().ready


async def test_another_digest_under_the_name_drains_what_stood(
    fake: FakeRuntime, fake_host: Host, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim after the change gets what was made before it, and no sandbox."""
    monkeypatch.setenv("PROOFBOX_HOME", str(tmp_path / "home"))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one").write_text("1")
    first = open_store().import_directory(tmp_path / "tree", "changing")
    async with fake_host.pool("changing", size=(2, 2)) as of:
        await of.ready(30)
        old = set(fake.live)
        async with of.claim() as box:
            assert box.template.digest == first.digest
        await of.ready(30)
        (tmp_path / "tree" / "two").write_text("2")
        second = open_store().import_directory(tmp_path / "tree", "changing")
        async with of.claim() as box, fake_host.open_sandbox("changing") as other:
            assert box.template.digest == other.template.digest == second.digest != first.digest
            assert box.id not in old
        await until(lambda: of.stats().ready == 2)
        assert of.stats().drained >= 2
        assert {handle.id for handle in fake.live.values()} & old == set()


async def test_what_members_reserve_is_reserved(fake: FakeRuntime, fake_host: Host) -> None:
    """Admission counts them: what does not fit beside them is refused, and a pool that is too big says why it is."""
    share = Limits(memory=available_memory(), memory_reserve=int(available_memory() * 0.4))
    async with fake_host.pool(PLAIN, size=(3, 3), limits=share) as of:
        await until(lambda: of.stats().state == "stuck")
        stats = of.stats()
        assert stats.ready == 2
        assert "memory_reserve" in stats.error
        with pytest.raises(Busy, match="memory_reserve"):
            async with fake_host.open_sandbox(PLAIN, limits=share):
                pass


async def test_closing_drains(fake: FakeRuntime, fake_host: Host) -> None:
    """Members that stand and those on their way are gone, what was claimed goes on until its own end, and no claim is
    served any more.
    """
    Script(fake, *[Faults()] * 3, others=Faults(boot_delay=60))
    async with fake_host.pool(PLAIN, size=(3, 3), at_once=1) as of:
        await of.ready(30)
        async with of.claim() as box:
            await until(lambda: of.stats().pending)
            await of.aclose()
            await of.aclose()
            assert set(fake.live) == {box.id}
            assert (await box.run("echo on")).stdout == "on\n"
            assert (of.stats().state, of.stats().ready, of.stats().pending) == ("closed", 0, 0)
            with pytest.raises(InvalidInput, match="closed"):
                await one_claim(of)
        assert fake.live == {}


async def test_closing_the_host_closes_its_pools(fake: FakeRuntime) -> None:
    """And nothing is made after it."""
    mine = await Host.local("fake", allow_unisolated=True)
    async with mine.pool(PLAIN, size=(2, 2)) as of:
        await of.ready(30)
        await mine.aclose()
        assert fake.live == {}
        assert of.stats().state == "closed"


async def test_a_pool_that_is_given_up_while_it_fills_leaves_nothing(fake: FakeRuntime, fake_host: Host) -> None:
    """The fixture looks for what is left, too."""
    Script(fake, Faults(), others=Faults(boot_delay=60))
    with anyio.move_on_after(0.1):
        async with fake_host.pool(PLAIN, size=(4, 4)) as of:
            await of.ready()
    assert fake.live == {}


async def test_a_claim_that_is_given_up_loses_and_leaks_no_member(fake: FakeRuntime, fake_host: Host) -> None:
    """One that waits for an answer goes back: nobody has had it."""
    Script(fake, others=Faults(ping="silent"))
    async with fake_host.pool(PLAIN, size=(2, 2)) as of:
        await of.ready(30)
        standing = set(fake.live)
        for _ in range(3):
            with anyio.move_on_after(0.02):
                async with of.claim():
                    pytest.fail("it cannot answer")
        assert set(fake.live) == standing
        stats = of.stats()
        assert (stats.ready, stats.unhealthy, stats.hits, stats.misses) == (2, 0, 0, 0)


async def test_a_storm_of_claims_that_are_given_up_leaves_what_is_wanted(fake: FakeRuntime, fake_host: Host) -> None:
    """Two hundred claims, each cancelled at a random moment: no sandbox is had twice, none is left."""
    chance = random.Random(3)
    had: list[str] = []
    Script(fake, others=Faults(boot_delay=0.001))
    async with fake_host.pool(PLAIN, size=(4, 8), at_once=4) as of:

        async def claim(patience: float) -> None:
            with anyio.move_on_after(patience):
                async with of.claim() as box:
                    had.append(box.id)
                    await box.run("echo x")
                    await anyio.sleep(0.01)

        for _ in range(10):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(claim, chance.uniform(0, 0.1))
        assert len(set(had)) == len(had) > 0
        await until(lambda: of.stats().state == "ready")
        stats = of.stats()
        assert stats.claimed == 0
        assert len(fake.live) == stats.ready + stats.pending
        assert stats.made == stats.ready + stats.hits + stats.surplus + stats.unhealthy + stats.expired


async def test_the_clock_of_a_claimant_stands_while_it_waits(fake: FakeRuntime, fake_host: Host) -> None:
    """Who is timed does not pay for the making of what was not there."""
    Script(fake, others=Faults(boot_delay=0.3))
    async with fake_host.pool(PLAIN, size=(0, 1)) as of:
        clock = Clock(0.15)
        with clock.run():
            await one_claim(of)
        assert not clock.expired
        assert of.stats().misses == 1


async def test_the_clock_of_a_claimant_runs_while_the_pool_makes_the_next_one(
    fake: FakeRuntime, fake_host: Host
) -> None:
    """The refill that a claim sets off is not part of it: no time is given for nothing."""
    Script(fake, Faults(), others=Faults(boot_delay=60))
    async with fake_host.pool(PLAIN, size=(1, 1)) as of:
        await of.ready(30)
        clock = Clock(0.3)
        with anyio.fail_after(30), clock.run():
            async with of.claim():
                await until(lambda: of.stats().pending)
                await anyio.sleep_forever()
        assert clock.expired


def test_the_other_event_loop_has_pools_as_well(fake: FakeRuntime) -> None:
    """Nothing here is made for asyncio alone."""

    async def main() -> tuple[int, int]:
        host = await Host.local("fake", "none", allow_unisolated=True)
        async with host.pool(PLAIN, size=(2, 2)) as of:
            await of.ready(30)
            await one_claim(of)
            await one_claim(of, hostname="another")
            return of.stats().hits, of.stats().other

    assert anyio.run(main, backend="trio") == (1, 1)
    assert fake.live == {}


def test_percentiles_are_values_that_were_measured() -> None:
    """Nearest rank: of one claim all three are its time, of a hundred the 50th, 95th and 99th."""
    assert latency([]).p99 == 0
    one = latency([0.5])
    assert (one.p50, one.p95, one.p99) == (0.5, 0.5, 0.5)
    many = latency([float(n) for n in range(100, 0, -1)])
    assert (many.p50, many.p95, many.p99) == (50, 95, 99)
