"""Warm pools of real sandboxes: a member is as clean as one that is made now, and a dead one is handed to nobody."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.conftest import open_host
from tests.sandbox.test_pool import until

from proofbox.model.limits import Limits
from proofbox.model.template import Template
from proofbox.runtimes.native.handle import NativeHandle
from proofbox.sandbox import members
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store

pytestmark = pytest.mark.container


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """This machine with the native runtime."""
    async with open_host("native") as made:
        yield made


async def seen(box: Sandbox) -> list[str]:
    """What a program finds when it is the first one: processes, files, mounts, ports, shared memory, environment."""
    look = (
        "cat /proc/[0-9]*/comm; ls -lan / /tmp /dev/shm /root | tr -s ' ' | cut -d' ' -f1,3-5,9-; "
        "cut -d' ' -f5- /proc/self/mountinfo | sed 's/[ug]id=[0-9]*//g'; "
        "cat /proc/net/tcp /proc/sysvipc/*; wc -l < /proc/net/unix; env; id; hostname; ulimit -a"
    )
    result = await box.run(look)
    assert result.ok, result.stderr
    return sorted(result.stdout.splitlines())


async def test_a_member_is_as_clean_as_one_that_is_made_now(host: Host) -> None:
    """What earlier claimants left everywhere is not in the next member, which looks like a cold sandbox to the
    letter.
    """
    dirt = (
        "touch /tmp/mine /dev/shm/mine /mine; (setsid sleep 600 &); ipcmk -M 4096 >/dev/null 2>&1; "
        "echo x > /etc/motd; rm /etc/passwd; true"
    )
    async with host.pool(size=(2, 2)) as of:
        assert (await of.ready(60)).ready == 2
        for _ in range(3):
            async with of.claim() as box:
                assert (await box.run(dirt)).ok
        assert (await of.ready(60)).ready == 2
        async with of.claim(cold=False) as warm, host.open_sandbox() as cold:
            assert await seen(warm) == await seen(cold)
            assert not (await warm.run("ls /tmp/mine || ls /dev/shm/mine || ls /mine")).ok


async def test_a_member_that_was_killed_is_handed_to_nobody(host: Host) -> None:
    """Its first process is killed from outside while it waits; the claim right after it gets a live one."""
    async with host.pool(size=(3, 3)) as of:
        assert (await of.ready(60)).ready == 3
        dead = {life.spec.id for life in host._factory.lives}
        for life in host._factory.lives:
            assert isinstance(life.handle, NativeHandle)
            os.kill(life.handle.pid, signal.SIGKILL)
        async with of.claim() as box:
            assert (await box.run("echo on")).stdout == "on\n"
            assert box.id not in dead
        await until(lambda: of.stats().unhealthy == 3)
        await until(lambda: of.stats().ready == of.stats().wanted)


async def test_who_asks_for_a_seed_gets_a_sandbox_of_that_seed(host: Host) -> None:
    """Members have identities of their own, so none of them serves."""
    found = []
    async with host.pool(size=(1, 1)) as of:
        assert (await of.ready(60)).ready == 1
        for seed in (7, 7, None):
            async with of.claim(seed=seed) as box:
                found.append((await box.run("cat /proc/sys/kernel/random/boot_id")).stdout)
        assert (of.stats().other, of.stats().hits) == (2, 1)
    assert found[0] == found[1] != found[2]


async def test_claims_from_all_sides_are_served_and_limits_hold(host: Host) -> None:
    """Forty claims, eight at a time: each has its own sandbox with the limits of the pool, and all are gone in the
    end.
    """
    had: set[str] = set()
    slots = anyio.CapacityLimiter(8)
    async with host.pool(size=(2, 8), at_once=4, limits=Limits(open_files=64)) as of:

        async def claim() -> None:
            async with slots, of.claim() as box:
                assert (await box.run("ulimit -n; echo mine > /tmp/file; cat /tmp/*")).stdout == "64\nmine\n"
                had.add(box.id)

        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(claim)
        stats = of.stats()
        assert len(had) == stats.hits + stats.misses == 40
        assert stats.wanted > 2
    assert not host._factory.lives


@pytest.mark.usefixtures("own_record")
async def test_a_member_that_changed_while_it_waited_is_found_and_counted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file more than it was made with: it is destroyed at the next look and handed to nobody, with a reason."""
    monkeypatch.setattr(members, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(members, "TICK", 0.05)
    async with host.pool(size=(2, 2)) as of:
        assert (await of.ready(60)).ready == 2
        changed = of._members._idle[0].box
        await changed.write("/tmp/mine", "x")
        await until(lambda: of.stats().unclean == 1)
        assert of.stats().unhealthy == 0
        assert "inodes" in of.stats().error
        assert host.starts.unclean == 1
        await until(lambda: changed.id not in {life.spec.id for life in host._factory.lives})


async def test_a_pool_that_verifies_looks_at_the_claim_too(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is found by the claim itself, which goes on with a clean member."""
    monkeypatch.setenv("PROOFBOX_HOME", str(tmp_path / "home"))
    for folder in ("tmp", "etc"):
        (tmp_path / "tree" / folder).mkdir(parents=True)
    (tmp_path / "tree/etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "tree/etc/group").write_text("root:x:0:\n")
    small = open_store().import_directory(tmp_path / "tree", "small")
    async with host.pool(small, size=(2, 2), verify_start=True) as of:
        assert (await of.ready(60)).ready == 2
        changed = of._members._idle[0].box
        await changed.write("/tmp/mine", "x")
        async with of.claim(cold=False) as box:
            assert box.id != changed.id
            assert await box.files.list("/tmp") == []
        assert (of.stats().unclean, of.stats().hits) == (1, 1)


def imported(tree: Path) -> Template:
    """What a template is made of just now: no file of it is older than that."""
    (tree / "etc/group").write_text(f"root:x:0:{tree.name}\n")
    return open_store().import_directory(tree, f"new/{tree.name}")


async def test_a_start_is_verified_however_new_its_template_is(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in the very tick of the clock in which its files came to be, and later: the same, to who compares."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:  # where nothing waits for a disk
        monkeypatch.setenv("PROOFBOX_HOME", f"{top}/home")
        for number in range(12):
            tree = Path(top, str(number))
            (tree / "etc").mkdir(parents=True)
            (tree / "tmp").mkdir()
            (tree / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
            async with host.open_sandbox(await anyio.to_thread.run_sync(imported, tree), verify_start=True):
                pass
            async with host.open_sandbox(f"new/{number}", verify_start=True):
                pass
        open_store().close()


STOOD_STILL = """
import os, signal, subprocess, sys
import anyio
from proofbox.sandbox.host import Host

async def main(keep):
    host = await Host.local(sys.argv[1])
    async with host.pool(size=(2, 2), keep=keep) as pool:
        await pool.ready(60)
        old = {member.box.id for member in pool._members._idle}
        wakes = f"while ! grep -q 'State:.T' /proc/{os.getpid()}/status; do :; done; sleep 1; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", wakes])
        os.kill(os.getpid(), signal.SIGSTOP)
        async with pool.claim() as box:
            print(box.id in old, (await box.run("echo on")).stdout.strip(), pool.stats().unhealthy)
    await host.aclose()

anyio.run(main, float(sys.argv[2]))
"""


@pytest.mark.parametrize(("keep", "told"), [("0.9", "False on 0"), ("600", "True on 0")])
async def test_a_client_that_stood_still_hands_out_nothing_that_has_expired(host: Host, keep: str, told: str) -> None:
    """As after a machine was paused, and the clock jumps: a claim that comes before the pool's own look gets a new
    sandbox; members that may wait longer are there still.
    """
    words = [sys.executable, "-c", STOOD_STILL, host.runtime_name, keep]
    ran = await anyio.run_process(words, check=False)
    assert ran.stdout.decode().strip() == told, ran.stderr.decode()
