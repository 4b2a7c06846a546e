"""Freezing, forks and snapshots at every runtime that keeps what a sandbox writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.sandbox.forks.shown import DIRTY, listing, needs_marks, other_lines, output, until

from proofbox import sync
from proofbox.errors import InvalidInput, Refused, SandboxLost
from proofbox.host import copies, layers
from proofbox.model.limits import MIB, Limits
from proofbox.sandbox import stack
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.testing.orphans import adopting, children, settled

pytestmark = [pytest.mark.container, pytest.mark.anyio]


async def test_every_kind_of_fork_starts_from_the_same_tree(host: Host) -> None:
    """Forks of the live and of the frozen sandbox, a fork of a fork, and a sandbox of a snapshot see content, modes,
    owners, times, attributes, links, removals and replaced directories as the parent did.
    """
    async with host.open_sandbox() as box:
        made = await box.run(DIRTY, merge=True)
        assert made.ok, made.stdout
        await box.write("/data/own", host.runtime_name)  # a layer that holds the same is kept once, with its times
        wanted = await listing(box)
        assert "b'/data/dir/deep/again'" in str(wanted)
        async with box.fork() as (child,):
            assert other_lines(await listing(child), wanted) == set()
            async with child.fork() as (grandchild,):
                assert other_lines(await listing(grandchild), wanted) == set()
        assert other_lines(await listing(box), wanted) == set(), "the parent itself is as it was"
        await box.freeze()
        async with box.fork() as (child,):
            assert other_lines(await listing(child), wanted) == set()
            await child.freeze()
            async with child.fork() as (grandchild,):
                assert other_lines(await listing(grandchild), wanted) == set()
        template = await box.snapshot()
    async with host.open_sandbox(template.digest) as box:
        assert other_lines(await listing(box), wanted) == set()


async def test_forks_share_nothing_that_is_written_later(host: Host) -> None:
    """Siblings, their parent and its parent write to the same names, and each sees its own alone."""
    async with host.open_sandbox() as parent:
        await output(parent, "mkdir /w; echo start > /w/f; echo start > /w/gone")
        await parent.freeze()
        async with parent.fork(3) as (one, two, three):
            await output(one, "echo one > /w/f; rm /w/gone; mkdir /w/d; touch /w/d/x")
            await output(two, "echo two > /w/f; echo two > /w/new")
            assert await output(one, "cat /w/f; ls /w /w/d") == "one\n/w:\nd\nf\n\n/w/d:\nx"
            assert await output(two, "cat /w/f /w/gone; ls /w") == "two\nstart\nf\ngone\nnew"
            assert await output(three, "cat /w/f /w/gone; ls /w") == "start\nstart\nf\ngone"
            await one.freeze()
            async with one.fork(2) as (left, right):
                await output(left, "echo left > /w/f; rm /w/d/x")
                assert await output(right, "cat /w/f; ls /w/d") == "one\nx"
                assert await output(left, "cat /w/f; ls /w /w/d") == "left\n/w:\nd\nf\n\n/w/d:"
        async with parent.fork() as (late,):
            assert await output(late, "cat /w/f /w/gone") == "start\nstart"


async def test_a_directory_takes_the_place_of_what_was_removed(host: Host) -> None:
    """In a child, in a child of that, and not in their parents."""
    needs_marks(host)
    async with host.open_sandbox() as parent:
        await output(parent, "mkdir /w; echo start > /w/gone")
        await parent.freeze()
        async with parent.fork(2) as (one, two):
            await output(one, "rm /w/gone; mkdir /w/gone; touch /w/gone/x")
            assert await output(two, "cat /w/gone") == "start"
            await one.freeze()
            async with one.fork(2) as (left, right):
                await output(left, "rm -r /w/gone; mkdir /w/gone; touch /w/gone/y")
                assert await output(right, "ls /w/gone") == "x"
                assert await output(left, "ls /w/gone") == "y"


async def test_a_child_outlives_its_parent(host: Host) -> None:
    """What lies below a child stays when the parent is closed, whether it was frozen or live."""
    for freeze in (True, False):
        async with host.open_sandbox() as parent:
            await output(parent, "echo kept > /data")
            if freeze:
                await parent.freeze()
            async with parent.fork() as (child,):
                await parent.aclose()
                assert await output(child, "cat /data") == "kept"
                async with child.fork() as (grandchild,):
                    await child.aclose()
                    assert await output(grandchild, "cat /data") == "kept"


async def test_a_frozen_sandbox_runs_nothing_and_can_be_asked_what_it_used(host: Host) -> None:
    """Its processes are gone when ``freeze`` returns, who waited for one is told, and it cannot be used but forked."""
    async with host.open_sandbox() as box:
        await box.write("/big", b"x" * MIB)
        sleeping = await box.start("sleep 60")
        pids = _processes_of(box)
        assert pids
        await box.freeze()
        await box.freeze()
        assert (box.frozen, box.live) == (True, False)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert ((await box.usage()).disk or 0) >= MIB
        with pytest.raises(SandboxLost, match="frozen"):
            await sleeping.wait()
        with pytest.raises(SandboxLost, match="frozen"):
            await box.run("true")
    with pytest.raises(SandboxLost):
        async with box.fork():
            pass


def _processes_of(box: Sandbox) -> list[int]:
    observed = box._life.observe()
    return [] if observed is None else list(observed[0])


async def test_a_live_parent_is_copied_between_two_writes_and_goes_on(host: Host) -> None:
    """A program that keeps two files one step apart is caught in no third state; it writes on afterwards, and one that
    was stopped before stays so.
    """
    program = (
        "import os\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    for name in ('/w/first', '/w/second'):\n"
        "        with open(name + '.new', 'w') as f: f.write(str(n))\n"
        "        os.rename(name + '.new', name)\n"
    )
    async with host.open_sandbox() as box:
        await output(box, "mkdir /w; echo 0 > /w/first; echo 0 > /w/second")
        writers = [await box.start(["python3", "-c", program.replace("/w/", f"/w/{i}")]) for i in range(3)]
        stopped = await box.start("kill -STOP $$; touch /w/went-on")
        state = f"cut -d' ' -f3 /proc/{stopped.pid}/stat"

        async def ready() -> bool:
            return (await box.run("cat /w/0second /w/1second /w/2second")).ok and await output(box, state) == "T"

        async def written() -> bool:
            return await output(box, "cat /w/0second") != before

        await until(ready)
        for _ in range(5):
            async with box.fork() as (child,):
                for i in range(3):
                    first, second = (await output(child, f"cat /w/{i}first; echo; cat /w/{i}second")).split()
                    assert int(first) - int(second) in (0, 1)
                assert "python3" not in await output(child, "cat /proc/[0-9]*/comm 2> /dev/null; true")
        assert not any(writer.over for writer in writers)
        before = await output(box, "cat /w/0second")
        await until(written)
        assert await output(box, state) == "T"
        assert not (await box.run("test -e /w/went-on")).ok


@pytest.fixture(params=["memory", "disk"])
def copied_to(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where copies of live sandboxes are made; all of memory would not be enough for the one of the second run."""
    if request.param == "disk":
        monkeypatch.setattr("proofbox.host.copies.SHARE", 1 << 40)
    elif not layers.takes_marks():
        pytest.skip("before Linux 6.6 a file system in memory takes no marks of an overlay")
    return str(request.param)


async def test_a_live_parent_is_copied_where_there_is_room(host: Host, home: Path, copied_to: str) -> None:
    """In memory nothing of it is seen in the store; on the disk it is, as long as a child lives. Children see the same,
    and what each changes of it is its own.
    """
    async with host.open_sandbox() as box:
        made = await box.run(DIRTY, merge=True)
        assert made.ok, made.stdout
        wanted = await listing(box)
        async with box.fork(2) as (one, two):
            assert len(list(home.glob("making/*/layer"))) == (copied_to == "disk")
            await output(one, "echo one > /data/file; rm /data/dir/link")
            assert other_lines(await listing(two), wanted) == set()
        assert other_lines(await listing(box), wanted) == set()


async def test_a_cancelled_fork_lets_the_processes_go_on(host: Host, home: Path, copied_to: str) -> None:
    """Cancelled while the copy is made, nothing of it is left and no process stays stopped."""
    async with host.open_sandbox() as box:
        await output(box, "for i in 1 2 3 4; do head -c 40000000 /dev/zero | tr '\\0' x > /big$i; done")
        running = await box.start("while :; do :; done")
        host_pid = max(_processes_of(box))

        async def fork() -> None:
            async with box.fork():
                pytest.fail("it was to be cancelled")

        async def begun() -> bool:
            return bool(copies._making or list(home.glob("making/*/layer/0/big*")))

        async def removed() -> bool:
            return not list(home.glob("making/*"))

        async with anyio.create_task_group() as group:
            group.start_soon(fork)
            await until(begun)
            group.cancel_scope.cancel()
        assert Path(f"/proc/{host_pid}/stat").read_text().rpartition(") ")[2][0] != "T"
        assert not running.over
        assert await output(box, "ls -s /big1 | cut -d' ' -f1") != "0"
        await until(removed)


async def test_limits_on_disk_and_memory_are_for_what_a_child_writes_itself(host: Host) -> None:
    """Children of a sandbox whose disk is full have their own limit whole, and reading what it wrote costs no memory
    of theirs.
    """
    counted = "memory" in host.probe.enforces
    limits = Limits(disk=48 * MIB, memory=128 * MIB if counted else None)
    async with host.open_sandbox(limits=limits) as parent:
        filled = await parent.run("head -c 100000000 /dev/zero | tr '\\0' x > /full")
        assert not filled.ok
        size = int(await output(parent, "stat -c %s /full"))
        assert size > 40 * MIB
        await parent.freeze()
        smaller = Limits(disk=8 * MIB, memory=24 * MIB if counted else None)
        async with parent.fork(2, limits=smaller) as kids:
            for child in kids:
                assert await output(child, "cat /full | wc -c") == str(size)
                assert await output(child, "head -c 6000000 /dev/zero > /more; stat -c %s /more") == "6000000"
                assert "No space left" in (await child.run("head -c 9000000 /dev/zero > /most")).stderr
                assert not (await child.usage()).oom_kills


async def test_an_older_kernel_copies_what_is_frozen(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the ids of a frozen layer cannot be mapped children start from a copy of it, and of what lies below."""
    monkeypatch.setattr("proofbox.host.layers.MAPS_TMPFS", (99, 0))
    async with host.open_sandbox() as box:
        await output(
            box, "mkdir /w; touch /w/one; chown 7:8 /w/one 2>/dev/null || true; stat -c %u:%g /w/one > /w/owner"
        )
        await box.freeze()
        async with box.fork() as (child,):
            assert await output(child, "stat -c %u:%g /w/one | cmp - /w/owner && ls /w") == "one\nowner"
            await output(child, "rm /w/one; touch /w/two")
            await child.freeze()
            async with child.fork() as (grandchild,):
                assert await output(grandchild, "ls /w") == "owner\ntwo"
                template = await grandchild.snapshot()
    async with host.open_sandbox(template) as box:
        assert await output(box, "ls /w") == "owner\ntwo"


async def test_nothing_is_held_when_all_are_closed(host: Host) -> None:
    """Descriptors, and the mounts of the process that holds frozen layers, are as before."""
    kept = layers.keeper()
    mounts = Path(f"/proc/{kept._process.pid}/mountinfo")

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def attached() -> int:
        return mounts.read_text().count("\n") - 1

    async def nothing_attached() -> bool:
        return attached() == 0

    async def let_go() -> bool:
        return attached() == 0 and descriptors() <= before

    for _ in range(2):  # the first time something stays, for the next one
        await until(nothing_attached)
        before = descriptors()
        async with host.open_sandbox() as box:
            await box.freeze()
            async with box.fork(2) as (one, _):
                await one.freeze()
                async with one.fork(2):
                    assert attached() == (2 if layers.can_stack() else 0)
    await until(let_go)


async def test_memory_is_not_carried_over_and_other_runtimes_refuse(host: Host, fake_host: Host) -> None:
    """``memory=True`` and a runtime without layers are refused, with the reason, and the sandbox lives on."""
    async with host.open_sandbox() as box:
        with pytest.raises(Refused, match="memory"):
            async with box.fork(memory=True):
                pass
        with pytest.raises(InvalidInput):
            async with box.fork(0):
                pass
        assert await output(box, "echo on") == "on"
    async with fake_host.open_sandbox() as box:
        for attempt in (box.freeze, box.snapshot):
            with pytest.raises(Refused, match="keeps no layer"):
                await attempt()
        with pytest.raises(Refused, match="keeps no layer"):
            async with box.fork():
                pass
        assert box.live


def forks_without_a_loop(runtime: str) -> None:
    """The same calls, as plain context managers."""
    with sync.open_sandbox(runtime=runtime) as box:
        box.write("/w", "parent")
        with box.fork() as (child,):
            child.write("/w", "child")
            assert box.read("/w") == b"parent"
        box.freeze()
        with box.fork(2) as children:
            assert [child.read("/w") for child in children] == [b"parent", b"parent"]
        assert (box.frozen, box.live) == (True, False)
        template = box.snapshot()
    with sync.open_sandbox(template, runtime=runtime) as copy:
        assert copy.read("/w") == b"parent"


async def test_the_synchronous_facade_forks_too(host: Host) -> None:
    """In a thread of its own, as code without an event loop has it."""
    await anyio.to_thread.run_sync(forks_without_a_loop, host.runtime_name)


CLIENT = """
import sys, anyio
from proofbox.sandbox.host import Host

async def main(runtime):
    host = await Host.local(runtime)
    async with host.open_sandbox() as box:
        await box.run("head -c 30000000 /dev/zero | tr '\\\\0' x > /big")
        background = await box.start("while :; do :; done")
        print("begin", flush=True)
        while True:
            async with box.fork(2) as (one, two):
                await one.freeze()
                async with one.fork():
                    await one.snapshot()

anyio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2])
def test_kill_9_at_any_moment_leaves_no_process(host: Host, moment: float, home: Path, tmp_path: Path) -> None:
    """The client is killed while it copies, forks, freezes and snapshots: all its processes end, and what it was making
    is removed by the next who makes something.
    """
    environment = {**os.environ, "PROOFBOX_STATE": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with adopting():
        before = children()
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, host.runtime_name], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert client.stdout is not None
        assert client.stdout.readline() == "begin\n"
        try:
            client.wait(moment)
            pytest.fail(f"it ended by itself: {client.returncode}")
        except subprocess.TimeoutExpired:
            client.send_signal(signal.SIGKILL)
        client.stdout.close()
        client.wait()
        assert settled(before, 20.0) == {}
    with stack._place(home) as place:
        assert list((home / "making").glob("*/")) == [place.parent]
