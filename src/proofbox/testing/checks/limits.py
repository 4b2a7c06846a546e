"""Limits hold, each is named when it fires, and none takes the sandbox with it but its own."""

from __future__ import annotations

import errno
import os
import signal
from time import perf_counter

import anyio
import pytest

from proofbox.errors import FileFailed, ProofboxError, Refused, SandboxLost
from proofbox.model.limits import MIB, Limits
from proofbox.model.outcome import Exited, HitLimit, Lost, Signaled
from proofbox.sandbox.api import Sandbox
from proofbox.testing.needs import OpenBox, check

EAT = "tail /dev/zero"
"""Keeps an endless line in memory."""
AT_ONCE = "dd if=/dev/zero of=/dev/null bs=1500M count=1"
"""Asks for all of it in one piece, as much as a small machine does not have."""
GROWS = "awk 'BEGIN { x = 1; while (1) x = x x }'"
"""Its own instructions fill memory, where the others have the kernel do it."""


@pytest.mark.parametrize("eat", [EAT, AT_ONCE, GROWS])
@check(enforces=("memory",), survives=("memory",))
async def test_passing_the_memory_limit_is_named(open_box: OpenBox, eat: str) -> None:
    """The outcome says memory, with the limit, and the kernel's counter stands beside it; the sandbox lives on."""
    async with open_box(limits=Limits(memory=64 * MIB)) as box:
        result = await box.run(f"exec {eat}", timeout=60)
        assert isinstance(result.outcome, HitLimit), result.outcome
        assert (result.outcome.kind, result.outcome.limit) == ("memory", 64 * MIB)
        assert (result.usage.oom_kills or 0) >= 1
        after = await box.run("echo on")
        assert (after.stdout, after.usage.oom_kills) == ("on\n", 0)
        assert ((await box.usage()).oom_kills or 0) >= 1


@check(enforces=("memory",), survives=("memory",))
async def test_a_grandchild_that_is_killed_for_memory_is_reported(open_box: OpenBox) -> None:
    """Also where the command itself exits with 0."""
    async with open_box(limits=Limits(memory=64 * MIB)) as box:
        result = await box.run(f"({EAT}); exit 0", timeout=60)
        assert (result.usage.oom_kills or 0) >= 1
        assert isinstance(result.outcome, HitLimit) or result.outcome == Exited(0)


@check(enforces=("memory",), survives=("memory",))
async def test_files_in_memory_count_as_memory(open_box: OpenBox) -> None:
    """What is written to a memory file system cannot pass the limit either, and the sandbox is not lost to it.

    Its memory is full then, so that nothing is said about whether the next program finds room.
    """
    async with open_box(limits=Limits(memory=64 * MIB, disk=None)) as box:
        result = await box.run("head -c 200M /dev/zero > /dev/shm/fill", timeout=60)
        assert not result.ok
        await box.kill_all()
        assert box.live


@pytest.mark.parametrize("eaten", [EAT, "head -c 200M /dev/zero > /dev/shm/fill", "head -c 200M /dev/zero > /dev/fill"])
@check(enforces=("memory",))
async def test_a_memory_limit_that_ends_the_sandbox_says_so(open_box: OpenBox, eaten: str) -> None:
    """Where a program cannot be ended alone for it: whoever waits is told which limit it was, and whose doing."""
    async with open_box(limits=Limits(memory=64 * MIB, disk=None)) as box:
        if "memory" not in box.host.probe.fatal:
            pytest.skip(f"a sandbox of {box.host.runtime_name} survives what passes its limit on memory")
        with pytest.raises(SandboxLost) as lost:
            await box.run(eaten, timeout=60)
    assert lost.value.reason == "memory"
    hit = lost.value.limit
    assert isinstance(hit, HitLimit)
    assert (hit.kind, hit.limit, hit.cause) == ("memory", 64 * MIB, "task")


@check(enforces=("memory",))
async def test_who_is_ended_for_memory_is_told_so_whether_or_not_the_sandbox_goes_on(open_box: OpenBox) -> None:
    """By the outcome, or by the loss: never by an exit status alone, which tells an agent nothing."""
    async with open_box(limits=Limits(memory=256 * MIB)) as box:
        try:
            hit: object = (await box.run(f"exec {GROWS}", timeout=60)).outcome
        except SandboxLost as lost:
            hit = lost.limit
    assert isinstance(hit, HitLimit), hit
    assert (hit.kind, hit.limit, hit.cause) == ("memory", 256 * MIB, "task")


@check(enforces=("memory",))
async def test_too_little_memory_to_begin_with_is_told(open_box: OpenBox) -> None:
    """It is enough here, or the limit is named."""
    told = ""
    try:
        async with open_box(limits=Limits(memory=4 * MIB)) as box:
            await box.run("echo on")
    except ProofboxError as failed:
        told = str(failed)
    assert not told or f"memory={4 * MIB}" in told or f"limit {4 * MIB} bytes" in told


@check(enforces=("inodes",))
async def test_as_many_files_as_were_asked_for_can_be_made(open_box: OpenBox) -> None:
    """What the sandbox itself takes of its file system comes on top."""
    async with open_box(limits=Limits(inodes=20)) as box:
        result = await box.run("mkdir /tmp/d; for i in $(seq 19); do : > /tmp/d/$i || exit; done; ls /tmp/d | wc -l")
        assert result.stdout.strip() == "19", result
        more = await box.run("for i in $(seq 20 400); do : > /tmp/d/$i || exit; done")
        assert not more.ok, "the limit holds"


@check(enforces=("processes",))
async def test_the_limit_on_processes_refuses_forks_and_counts_them(open_box: OpenBox) -> None:
    """A fork bomb stays inside, is counted, and the sandbox can still run a command afterwards."""
    async with open_box(limits=Limits(processes=24)) as box:
        for seconds in (0.8, 8.0, 30.0):  # the longer ones for hosts on which so many do not start before
            result = await box.run("i=0; while [ $i -lt 60 ]; do sleep 60 & i=$((i+1)); done; wait", timeout=seconds)
            if result.stderr:
                break
        assert "fork" in result.stderr.lower()
        # A limit without control groups holds, but nobody counts.
        assert result.usage.process_denials is None or result.usage.process_denials >= 1
        await box.kill_all()
        assert (await box.run("echo on")).stdout == "on\n"


@pytest.mark.parametrize("where", ["/tmp", "/var/tmp", "/usr", "/dev/shm", "$HOME"])
@check(enforces=("disk",))
async def test_the_disk_limit_says_no_space_left(open_box: OpenBox, where: str) -> None:
    """Wherever the sandbox can write it is bounded, the program is told so, and goes on once it has cleaned up."""
    async with open_box(limits=Limits(disk=8 * MIB)) as box:
        result = await box.run(f"head -c 24M /dev/zero > {where}/fill")
        assert result.outcome == Exited(1)
        assert "No space left" in result.stderr
        usage = await box.usage()
        assert usage.full == ("disk" if usage.disk is not None else None)  # None: nobody outside may look into it
        assert (await box.run(f"rm {where}/fill && echo again > {where}/fill && cat {where}/fill")).stdout == "again\n"
        assert (await box.usage()).full is None


@check(enforces=("disk",))
async def test_a_file_operation_meets_the_disk_limit_too(open_box: OpenBox) -> None:
    """It fails with the error of a full disk and leaves the old file."""
    async with open_box(limits=Limits(disk=8 * MIB)) as box:
        await box.write("/tmp/file", b"old")
        with pytest.raises(FileFailed) as caught:
            await box.write("/tmp/file", bytes(24 * MIB))
        assert caught.value.errno == errno.ENOSPC
        assert await box.read("/tmp/file") == b"old"
        await box.write("/tmp/other", bytes(4 * MIB))


@check(enforces=("inodes",))
async def test_the_limit_on_files_says_no_space_left(open_box: OpenBox) -> None:
    """Empty files are bounded in number."""
    async with open_box(limits=Limits(inodes=500)) as box:
        result = await box.run("mkdir /tmp/many && cd /tmp/many && seq 1 2000 | xargs touch")
        assert not result.ok
        assert "No space left" in result.stderr
        usage = await box.usage()
        assert usage.full == ("inodes" if usage.disk is not None else None)  # as above


@check(enforces=("open_files",))
async def test_the_limit_on_open_files_holds(open_box: OpenBox) -> None:
    """A process sees the limit, meets it, and cannot raise it."""
    async with open_box(limits=Limits(open_files=32)) as box:
        assert (await box.run("ulimit -n; ulimit -Hn")).stdout == "32\n32\n"
        assert not (await box.run("ulimit -n 64")).ok
        result = await box.run("for i in 5 6 7 8; do :; done; exec 40>/dev/null")
        assert not result.ok


@check(enforces=("process_memory",))
async def test_the_limit_on_one_process_memory_holds(open_box: OpenBox) -> None:
    """A process that wants more is told so by its allocator."""
    async with open_box(limits=Limits(process_memory=128 * MIB)) as box:
        assert (await box.run("ulimit -v")).stdout == f"{128 * 1024}\n"
        assert not (await box.run(EAT, timeout=60)).ok
        assert (await box.run("echo on")).stdout == "on\n"


@check(enforces=("cpus",))
async def test_the_limit_on_cpu_time_holds(open_box: OpenBox) -> None:
    """A program that computes gets its share, and that it was held back is recorded."""
    async with open_box(limits=Limits(cpus=0.1)) as box:
        used, began = 0.0, perf_counter()
        for _ in range(10):
            await box.run("while :; do :; done", timeout=1.0)
            usage = await box.usage()
            seconds = perf_counter() - began  # a machine works for each of these calls too
            assert usage.cpu_user is not None
            used = usage.cpu_user
            assert used < 0.5 * seconds
            if usage.throttled:
                return
        if used < 0.1 * seconds:
            pytest.skip("this host is so busy that a sandbox does not even get what it may have")
        raise AssertionError(f"never held back: {usage}")


@check(enforces=("cpus",))
async def test_programs_count_the_processors_of_their_limit(open_box: OpenBox) -> None:
    """Whichever way they count: a sandbox of one processor does not start a worker for each of the host's."""
    count = "nproc; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat"
    count += "; cat /sys/devices/system/cpu/online"
    async with open_box(limits=Limits(cpus=0.5)) as box:
        result = await box.run(count)
        assert result.stdout.split()[:3] == ["1", "1", "1"], result
        assert result.stdout.split()[3].isdecimal()
        python = await box.run(
            ["python3", "-c", "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)), os.sysconf(84))"]
        )
        assert not python.ok or python.stdout.split() == ["1", "1", "1"]


@check(enforces=("cpus",), shared_kernel=True)
async def test_the_processors_of_a_sandbox_are_recorded(open_box: OpenBox) -> None:
    """Those that it keeps to stand with what it has used; where it may use all of them, none are named."""
    async with open_box(limits=Limits(cpus=1)) as box:
        online = (await box.run("cat /sys/devices/system/cpu/online")).stdout.strip()
        held = (await box.usage()).processors
    assert held == ((int(online),) if len(os.sched_getaffinity(0)) > 1 else ())
    async with open_box(limits=Limits(cpus=len(os.sched_getaffinity(0)))) as box:
        assert (await box.usage()).processors == ()


@check(enforces=("cpus",), shared_kernel=True)
async def test_sandboxes_are_spread_over_the_processors(open_box: OpenBox) -> None:
    """Two that are open at once do not share one as long as there is another, and one that has gone leaves its own."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this host has a single processor")
    one = Limits(cpus=1)
    which = "cat /sys/devices/system/cpu/online"
    async with open_box(limits=one) as first:
        for _ in range(2):
            async with open_box(limits=one) as second:
                assert (await first.run(which)).stdout != (await second.run(which)).stdout


@check(enforces=("cpu_time",))
async def test_the_sandbox_ends_when_its_cpu_time_is_used(open_box: OpenBox) -> None:
    """Also where no single process used it; the command that ran then says how much it was, and that it is its own."""
    async with open_box(limits=Limits(cpu_time=0.4)) as box:
        work = "for i in 1 2 3; do (i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done); done; "
        result = await box.run(f"while :; do {work} done", timeout=60)
        outcome = result.outcome
        assert isinstance(outcome, HitLimit), outcome
        assert (outcome.kind, outcome.limit, outcome.cause) == ("cpu_time", 0.4, "task")
        assert outcome.used is not None
        assert outcome.used >= 0.4
        with pytest.raises(SandboxLost) as lost:
            await box.run("echo never")
        assert lost.value.reason == "cpu_time"


@check(enforces=("cpu_time",))
async def test_waiting_uses_no_cpu_time(open_box: OpenBox) -> None:
    """Somebody who sleeps longer than that is left alone; a signal that only looks like the limit is none."""
    async with open_box(limits=Limits(cpu_time=5)) as box:
        assert (await box.run("sleep 0.3")).ok
        assert (await box.run("kill -XCPU $$")).outcome == Signaled(signal.SIGXCPU)
        assert (await box.run("exit 152")).outcome == Exited(152)


@check(enforces=("command_cpu_time",))
async def test_a_command_ends_when_its_tree_has_used_its_cpu_time(open_box: OpenBox) -> None:
    """Also where nobody lived long enough to be seen, or waits for children; the sandbox and others in it go on."""
    async with open_box(limits=Limits(command_cpu_time=0.3)) as box:
        other = await box.start("sleep 1; exit 5", cpu_time=600)
        for text in ("while :; do (:); done", "trap '' CHLD; while :; do /bin/true; done"):
            outcome = (await box.run(text, timeout=60)).outcome
            assert isinstance(outcome, HitLimit), outcome
            assert (outcome.kind, outcome.limit, outcome.cause) == ("command_cpu_time", 0.3, "task")
            assert (outcome.used or 0) >= 0.3
            assert outcome.confirmed
        assert (await box.run("echo on", cpu_time=600)).stdout == "on\n"
        assert (await other.wait()).outcome == Exited(5)


@check(enforces=("command_cpu_time",))
async def test_the_cpu_time_of_a_command_is_its_own(open_box: OpenBox) -> None:
    """Who computes beside it, and what it sleeps, do not count; nor does a signal that only looks like the limit."""
    async with open_box() as box:
        little = (await box.run("sleep 0.01")).usage
        most = 0.3 + 4 * (little.cpu_user + little.cpu_system)  # on a slow machine its own start takes some
        other = await box.start("while :; do :; done", timeout=600)
        assert (await box.run(f"sleep {3 * most}", cpu_time=most)).outcome == Exited(0)
        assert (await box.run("kill -XCPU $$", cpu_time=1)).outcome == Signaled(signal.SIGXCPU)
        assert not other.over


@check()
async def test_a_command_without_a_count_of_cpu_time_is_refused(open_box: OpenBox) -> None:
    """Where the runtime counts none, a limit on it is no advice."""
    async with open_box() as box:
        if "command_cpu_time" in box.host.probe.enforces:
            assert (await box.run("echo on", cpu_time=60)).ok
            return
        with pytest.raises(Refused, match="cpu_time"):
            await box.run("echo on", cpu_time=60)


@check(enforces=("idle",))
async def test_a_sandbox_that_nobody_asks_for_anything_ends(open_box: OpenBox) -> None:
    """A command that runs, however quietly, keeps it; with nothing to do it is ended, and whoever comes is told."""
    async with open_box(limits=Limits(idle=0.3)) as box:
        assert (await box.run("sleep 0.7")).ok
        reason = await box.wait_lost(30)
        assert reason is not None
        assert reason.reason == "idle"
        assert isinstance(reason.limit, HitLimit)
        with pytest.raises(SandboxLost, match="idle"):
            await box.run("echo never")


@check()
async def test_a_program_cannot_pretend_that_a_limit_fired(box: Sandbox) -> None:
    """What it prints, and codes that look like a kill, are its own doing and nothing else."""
    for code in (124, 137, 152, 255):
        result = await box.run(f"echo 'Killed: out of memory, timed out' >&2; exit {code}")
        assert result.outcome == Exited(code)
    for number in (signal.SIGKILL, signal.SIGXFSZ, signal.SIGXCPU):
        assert (await box.run(f"kill -{int(number)} $$")).outcome == Signaled(number)


@check(enforces=("wall",))
async def test_the_sandbox_ends_when_its_time_is_over(open_box: OpenBox) -> None:
    """Whatever runs in it then is lost with it, and says that it was the sandbox's limit on wall time."""
    async with open_box(limits=Limits(wall=0.7)) as box:
        with anyio.fail_after(30):
            try:
                outcome = (await box.run("sleep 60")).outcome
            except SandboxLost as lost:
                assert "wall" in str(lost)  # noqa: PT017 - both ways to say it are allowed
            else:
                assert isinstance(outcome, HitLimit | Lost)
                assert "wall" in (outcome.kind if isinstance(outcome, HitLimit) else outcome.detail)
            with pytest.raises(SandboxLost):
                await box.run("echo never")


@check()
async def test_what_was_used_is_measured(box: Sandbox) -> None:
    """CPU time and peak memory of a command come from the kernel, and are not zero for one that works."""
    result = await box.run("i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done")
    assert result.usage.cpu_user > 0
    assert result.usage.max_rss > 100_000
    assert 0 < result.elapsed < 60
