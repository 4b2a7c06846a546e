"""Nobody gets less isolation than was asked for: every door by which a weaker level could come in is closed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conftest import open_host
from tests.sandbox.test_registry import Stated, put, stated

from proofbox.build.api import build_template
from proofbox.errors import CreateFailed, Refused
from proofbox.model.isolation import Isolation
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level
from proofbox.runtime import registry
from proofbox.runtime.contract import Handle
from proofbox.sandbox.host import Host
from proofbox.sandbox.isolation import watched

__all__ = ["stated"]

pytestmark = pytest.mark.anyio


class Shares(Stated):
    """It says that it isolates, and its sandboxes' first process shares all that this process has."""

    def observe(self, handle: Handle) -> tuple[Sequence[int], Usage]:
        return (os.getpid(),), Usage()


class KernelShares(Stated):
    """It says that its sandboxes have a kernel of their own, which is a process with all that this process has."""

    def kernel_process(self, handle: Handle) -> int:
        return os.getpid()


async def test_a_host_is_of_the_level_that_was_proved(stated: list[str]) -> None:
    """Not of the one that its runtime would have elsewhere: what is recorded is what was there."""
    put(stated, Stated("machine", "vm", reaches="container"))
    host = await Host.local("machine")
    assert host.level == "container"
    async with host.open_sandbox() as box:
        assert (await box.isolation()).level == "container"
    with pytest.raises(Refused, match="reaches only level 'container'"):
        await Host.local("machine", "vm")
    await host.aclose()


async def test_to_permit_no_isolation_is_not_to_ask_for_it(stated: list[str]) -> None:
    """With the word for it, and nothing that isolates on this host, it is refused all the same."""
    with pytest.raises(Refused, match="container"):
        await Host.local(allow_unisolated=True)


async def test_a_host_that_was_opened_for_less_does_not_serve_for_more(stated: list[str]) -> None:
    """What one caller asked for is nobody else's answer."""
    put(stated, Stated("kernel", "user-kernel"))
    host = await Host.local()
    assert host.runtime_name == "kernel"
    with pytest.raises(Refused):
        await Host.local(level="vm")
    assert await Host.local() is host
    await host.aclose()


async def test_a_sandbox_that_is_less_than_its_level_is_not_handed_out(stated: list[str]) -> None:
    """Cold, from a pool, or forked: what is seen from outside is held against what was promised."""
    runtime = put(stated, Shares("shares", "container"))
    host = await Host.local("shares")
    with pytest.raises(CreateFailed, match=r"kept apart less than 'container' promises: the \w+ namespace"):
        async with host.open_sandbox():
            pass
    async with host.pool(size=(1, 1)) as pool:
        assert (await pool.ready(60)).ready == 0
        assert "no filter of system calls" in (pool.stats().error or "")
        with pytest.raises(CreateFailed, match="no filter of system calls"):
            async with pool.claim():
                pass
    assert not runtime.live
    await host.aclose()


@pytest.mark.parametrize("level", ["user-kernel", "vm"])
async def test_a_kernel_that_is_not_kept_apart_is_not_one_of_its_own(stated: list[str], level: Level) -> None:
    """Who breaks it would be on this host: looked at from outside, as the first process is at ``container``."""
    runtime = put(stated, KernelShares("kernel", level))
    host = await Host.local("kernel")
    with pytest.raises(CreateFailed, match=r"the net namespace is.* capabilities .* are in reach"):
        async with host.open_sandbox():
            pass
    assert not runtime.live
    await host.aclose()


async def test_a_build_is_made_at_the_level_that_was_asked_for(stated: list[str], tmp_path: Path) -> None:
    """Or not at all: no step of it runs anywhere else."""
    kernel = put(stated, Stated("kernel", "user-kernel"))
    (tmp_path / "recipe.toml").write_text(f'base = "host"\nsteps = [{{run = "echo {os.urandom(8).hex()}"}}]\n')
    with pytest.raises(Refused, match="a sandbox of level 'vm'"):
        await build_template(tmp_path / "recipe.toml", level="vm")
    assert kernel.made == 0


async def test_a_runtime_by_name_has_to_reach_the_level_too(stated: list[str]) -> None:
    """For a sandbox, a pool and a build alike: all ask the registry."""
    put(stated, Stated("kernel", "user-kernel"))
    with pytest.raises(Refused, match="its level is 'user-kernel', below 'vm'"):
        await registry.select("kernel", "vm", allow_unisolated=True)
    for allowed in (False, True):
        with pytest.raises(Refused, match=r"below 'user-kernel'|isolates nothing"):
            await registry.select("process", "user-kernel", allow_unisolated=allowed)


@pytest.mark.container
async def test_who_watches_learns_of_every_sandbox_that_is_handed_out(stated: list[str]) -> None:
    """Cold, from a pool, and forked; not of those that a pool makes ahead for others."""
    seen: dict[str, Isolation] = {}
    registry.unregister("native")  # the real one, not what stands in its place here
    async with open_host("native") as host, host.pool(size=(1, 1)) as pool:
        assert (await pool.ready(60)).ready == 1
        with watched(seen.setdefault):
            async with host.open_sandbox() as cold, pool.claim() as warm, cold.fork(2) as forks:
                used = {box.id for box in (cold, warm, *forks)}
                assert seen.keys() == used
                assert {each.alike() for each in seen.values()} == {(await cold.isolation()).alike()}
        assert pool.stats().made >= 1
        async with host.open_sandbox():
            pass
    assert seen.keys() == used
    assert {(each.level, each.seccomp, each.no_new_privs) for each in seen.values()} == {("container", 2, True)}
