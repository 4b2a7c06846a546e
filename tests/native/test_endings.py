"""Every way in which a native sandbox can fail to start or come to its end, and what is left then: nothing."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.native.conftest import Eventually, OpenBox, gone

from proofbox.errors import CreateFailed, Refused
from proofbox.host.cgroup import advance_roots, find_place
from proofbox.host.cgroup_room import claim_place
from proofbox.host.idmap import find_ids
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec, Volume
from proofbox.model.template import Layer, Template
from proofbox.runtimes.native import NativeRuntime
from proofbox.runtimes.native.launcher import Launcher

Pairs = tuple[tuple[str, str], ...]

pytestmark = [pytest.mark.anyio, pytest.mark.container]

needs_groups = pytest.mark.skipif(
    not {"memory", "pids"} <= claim_place().directories.keys(), reason="this process may not write control groups here"
)


def spec(**more: Any) -> SandboxSpec:
    """A small one."""
    return SandboxSpec(id=more.pop("id", "box"), template="t", limits=more.pop("limits", Limits(disk=1 << 20)), **more)


def launched(launcher: int) -> list[int]:
    """The launcher's children that are sandboxes, not blanks that wait to become one (the latest may still have the
    launcher's name), and not who mounts for one.
    """
    found = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [
        int(pid) for pid in found if name_of(pid) not in ("proofbox-launch", "proofbox-blank", "proofbox-mounts", "")
    ]


def name_of(pid: str) -> str:
    """A process's own; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def launcher_of(runtime: NativeRuntime) -> Launcher:
    """The one that runs now."""
    assert runtime._launcher is not None
    return runtime._launcher


async def test_destroy_leaves_nothing(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """No process, no control group; again and again is harmless; the counters are there until then."""
    async with open_box(limits=runtime_limits(runtime)) as box:
        await box.run("sleep 100 & setsid sleep 100 & (sleep 100 &)")
        handle = box.handle
        if handle.plan.directories:
            assert ((await runtime.usage(handle)).processes_now or 0) >= 4
    await runtime.destroy(handle)
    await runtime.stop(handle)
    assert gone(handle.pid)
    assert not any(os.path.exists(path) for path in handle.plan.directories)
    assert (await runtime.wait(handle)).asked


def runtime_limits(runtime: NativeRuntime) -> Limits:
    """Those that this host enforces."""
    all_of_them = Limits(memory=64 << 20, processes=20, disk=1 << 20, inodes=500)
    return Limits(**{kind: getattr(all_of_them, kind) for kind in all_of_them.asked() if kind in runtime._enforces})


async def test_stop_keeps_the_counters(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """Usage can be read between stop and destroy, and wait says that it was asked for."""
    async with open_box(limits=runtime_limits(runtime)) as box:
        await runtime.stop(box.handle)
        ended = await runtime.wait(box.handle)
        assert (ended.status, ended.oom, ended.asked) == (signal.SIGKILL, False, True)
        if box.handle.plan.directories:
            assert (await runtime.usage(box.handle)).processes_now == 0


async def test_an_end_from_inside_is_noticed(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """A guest whose channel closes exits, and a waiter hears of it; it was not asked for."""
    async with open_box() as box:
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.wait, box.handle)
            box.channel.close()
        assert not (await runtime.wait(box.handle)).asked


@pytest.mark.parametrize(
    ("layers", "volumes", "step"),
    [
        ((("/", "/nonexistent/root"),), (), "open layer /nonexistent/root: No such file"),
        ((("/opt", "{root}"),), (), "find a layer for /"),
        ((("/", "{root}"),), (("/nonexistent/data", "/mnt"),), "open volume /nonexistent/data: No such file"),
        ((("/", "{root}"),), (("{root}", "/etc/passwd/x"),), "/etc/passwd/x: Not a directory"),
        ((("/", "{root}"),), (("{root}", "/loop/x"),), "/loop/x: "),
        ((("/", "{root}/etc/passwd"),), (), "attach layer"),
        ((("/", "{links}"),), (), "open directory"),
    ],
)
async def test_a_step_that_fails_is_named(
    runtime: NativeRuntime, template: Template, tmp_path: Path, layers: Pairs, volumes: Pairs, step: str
) -> None:
    """The sandbox is refused with the step, on what, and why; a next one works."""
    (tmp_path / "root/loop").symlink_to("loop")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/dev").symlink_to("/etc")
    names = {"root": tmp_path / "root", "links": tmp_path / "links"}
    broken = Template(digest="", name="t", layers=tuple(Layer(at, path.format(**names)) for at, path in layers), env={})
    asked = tuple(Volume(source.format(**names), target) for source, target in volumes)
    with pytest.raises(CreateFailed, match=step):
        await runtime.create(spec(volumes=asked), broken)
    assert launched(launcher_of(runtime).pid) == []
    await runtime.destroy(await runtime.create(spec(), template))


async def test_a_limit_that_nothing_enforces_is_refused(runtime: NativeRuntime, template: Template) -> None:
    """Never advice: without control groups a limit on memory is no limit."""
    runtime._enforces = runtime._enforces - {"memory"}
    with pytest.raises(Refused, match="memory"):
        await runtime.create(spec(limits=Limits(memory=1 << 20)), template)


async def test_cancelled_at_any_instant_leaves_nothing(
    runtime: NativeRuntime, template: Template, eventually: Eventually
) -> None:
    """From before the request until after the sandbox stands."""
    await runtime.destroy(await runtime.create(spec(), template))
    launcher = launcher_of(runtime).pid
    for step in range(25):
        with anyio.move_on_after(step * 0.0002):
            handle = await runtime.create(spec(id=f"box-{step}"), template)
            with anyio.CancelScope(shield=True):
                await runtime.destroy(handle)
    assert await eventually(lambda: not launched(launcher))


async def test_a_killed_launcher_takes_its_sandboxes_along_and_is_replaced(
    runtime: NativeRuntime, open_box: OpenBox, template: Template
) -> None:
    """They end at once, are reported as lost, can be destroyed, and the next sandbox comes from a new launcher."""
    async with open_box(name="one", limits=runtime_limits(runtime)) as one, open_box(name="two") as two:
        first = launcher_of(runtime).pid
        _, pid = await one.run("setsid sleep 100 & echo $!")
        assert pid
        os.kill(first, signal.SIGKILL)
        for box in (one, two):
            ended = await runtime.wait(box.handle)
            assert (ended.status, ended.asked) == (None, False)
            assert gone(box.handle.pid)
        async with open_box(name="three") as three:
            assert (await three.run("echo on"))[1] == "on\n"
    assert launcher_of(runtime).pid != first
    assert not any(os.path.exists(path) for path in one.handle.plan.directories)


async def test_a_launcher_without_its_client_ends(
    runtime: NativeRuntime, open_box: OpenBox, eventually: Eventually
) -> None:
    """The end of its control socket ends all sandboxes, removes their groups and the owner's, and the launcher."""
    async with open_box(limits=runtime_limits(runtime)) as box:
        launcher = launcher_of(runtime)
        launcher._control.close()
        assert await eventually(lambda: launcher._process.poll() == 0)
        assert gone(box.handle.pid)
        assert not any(os.path.exists(path) for path in box.handle.plan.directories)


def blanks(launcher: int) -> list[int]:
    """The launcher's children that wait for a request."""
    found = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(pid) for pid in found if name_of(pid) == "proofbox-blank"]


async def test_a_blank_that_dies_is_not_used(runtime: NativeRuntime, open_box: OpenBox, eventually: Eventually) -> None:
    """Killed while it waits: the next sandbox is made from nothing, and then a new blank waits."""
    if not find_ids().full:
        pytest.skip("without a range of ids for each, nothing is made in advance")
    async with open_box(name="one"):
        launcher = launcher_of(runtime).pid
    for number in range(5):
        assert await eventually(lambda: len(blanks(launcher)) == 1)
        (blank,) = blanks(launcher)
        os.kill(blank, signal.SIGKILL)
        assert await eventually(partial(gone, blank))
        async with open_box(name=f"box-{number}", limits=runtime_limits(runtime)) as box:
            assert (await box.run("echo on"))[1] == "on\n"
            assert box.handle.pid != blank
    assert not any(Path(root, f"blank-{blank}").exists() for root in advance_roots(runtime._place, runtime._owner.id))


async def test_a_blank_becomes_the_next_sandbox(
    runtime: NativeRuntime, open_box: OpenBox, eventually: Eventually
) -> None:
    """The process that waited is the sandbox's first one, in the sandbox's control groups and under its limits."""
    if not find_ids().full:
        pytest.skip("without a range of ids for each, nothing is made in advance")
    async with open_box(name="one"):
        launcher = launcher_of(runtime).pid
        assert await eventually(lambda: len(blanks(launcher)) == 1)
        (blank,) = blanks(launcher)
        async with open_box(name="two", limits=runtime_limits(runtime)) as box:
            assert box.handle.pid == blank
            for group in box.handle.plan.directories:
                assert str(blank) in Path(group, "cgroup.procs").read_text().split()
            assert (await box.run("head -c 2M /dev/zero > /tmp/big"))[0] != 0


async def test_many_at_once(runtime: NativeRuntime, template: Template) -> None:
    """Two hundred are made and ended concurrently, each with ids of its own."""
    handles = []

    async def one(number: int) -> None:
        handles.append(await runtime.create(spec(id=f"box-{number}", limits=runtime_limits(runtime)), template))

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(one, number)
    bases = {handle.id_base for handle in handles}
    assert len(bases) == (200 if find_ids().users else 1)
    async with anyio.create_task_group() as group:
        for handle in handles:
            group.start_soon(runtime.destroy, handle)
    assert gone(*(handle.pid for handle in handles))
    assert not any(os.path.exists(path) for handle in handles for path in handle.plan.directories)


async def test_a_name_in_use_is_refused(runtime: NativeRuntime, open_box: OpenBox, template: Template) -> None:
    """The second sandbox of one name must not get into the first one's groups."""
    if not find_place().directories:
        pytest.skip("without control groups nothing outside carries the name")
    async with open_box(limits=runtime_limits(runtime)) as box:
        with pytest.raises(CreateFailed, match="make cgroup"):
            await runtime.create(spec(limits=runtime_limits(runtime)), template)
        assert (await box.run("echo on"))[1] == "on\n"


@needs_groups
async def test_memory_limit_kills_and_is_counted(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """By the kernel's counter, though the command that started the eater exits 0; the guest lives on."""
    async with open_box(limits=Limits(memory=32 << 20, disk=1 << 20)) as box:
        code, _ = await box.run("python3 -I -S -c 'x = bytearray(1 << 28)'; true")
        assert code == 0
        assert ((await runtime.usage(box.handle)).oom_kills or 0) >= 1
        assert (await box.run("echo on"))[1] == "on\n"
        await runtime.stop(box.handle)
        assert (await runtime.wait(box.handle)).oom


async def test_a_fork_bomb_meets_its_limit(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """By the pids controller, or by the kernel's limit for each user where a sandbox has one user only."""
    async with open_box(limits=Limits(processes=20, disk=1 << 20)) as box:
        code, output = await box.run(
            "python3 -I -S -c '\n"
            "import os, time\n"
            "made = 0\n"
            "try:\n"
            "    while made < 500:\n"
            "        if os.fork() == 0:\n"
            "            time.sleep(100)\n"
            "            os._exit(0)\n"
            "        made += 1\n"
            "except BlockingIOError:\n"
            "    pass\n"
            "print(made)'; kill -9 -1"
        )
        assert 15 <= int(output.split()[0]) <= 20 + 16, (code, output)
        assert (await box.run("echo on"))[1] == "on\n"
        if box.handle.plan.directories:
            assert ((await runtime.usage(box.handle)).process_denials or 0) >= 1
