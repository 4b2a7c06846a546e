"""``kill -9`` of the process that holds sandboxes leaves no process at once, and nothing after the next start."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from proofbox.errors import Refused
from proofbox.testing.needs import skip_unless_required
from proofbox.testing.orphans import adopting, children, settled, traces_of

pytestmark = pytest.mark.container

CLIENT = """
import sys
import anyio
from proofbox.runtime import registry
from proofbox.sandbox.host import Host
from proofbox.errors import Refused

async def main(name, how_many, mode):
    isolated = name != "process"
    try:
        host = await Host.local(name, "container" if isolated else "none", allow_unisolated=not isolated)
    except Refused as refused:
        print("refused", refused, flush=True)
        return
    print("owner", registry.owner().id, flush=True)
    up = 0

    async def one():
        nonlocal up
        while True:
            async with host.open_sandbox() as box:
                if mode == "storm":
                    await box.run("true")
                    continue
                await box.start("setsid sh -c 'sleep 600 & sleep 600' & nohup sleep 600")
                await box.run("(setsid sleep 600 &)")
                up += 1
                if up == how_many:
                    print("up", flush=True)
                await anyio.sleep_forever()

    if mode == "once":
        async with host.open_sandbox() as box:
            print((await box.run("echo on")).stdout.strip(), flush=True)
        return
    if mode == "pool":
        async with host.pool(size=(how_many, how_many), at_once=4) as pool:
            print("up" if (await pool.ready(60)).ready == how_many else "not up", flush=True)
            async with pool.claim() as box:
                await box.run("setsid sleep 600 & sleep 600")
    async with anyio.create_task_group() as group:
        for _ in range(how_many):
            group.start_soon(one)

anyio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""


def client(name: str, how_many: int, mode: str, state: pathlib.Path) -> subprocess.Popen[str]:
    """Starts a process that holds sandboxes, with a state directory of its own."""
    env = {**os.environ, "PROOFBOX_STATE": str(state)}
    argv = [sys.executable, "-c", CLIENT, name, str(how_many), mode]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def said(process: subprocess.Popen[str], name: str = "") -> str:
    """Its next line; a runtime that cannot be used here skips the test, or fails it, with its sentence."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line.startswith("refused") or not line:
        process.wait()
        process.stdout.close()
        if line:
            skip_unless_required(name, Refused(f"runtime {name!r}", (line,)))
        pytest.fail(f"the client ended with {process.returncode}")
    return line


def killed(process: subprocess.Popen[str]) -> None:
    """Kills it and reaps it."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def nothing_after_a_start(name: str, state: pathlib.Path, owner: str) -> None:
    """The next process of that user sweeps what the dead one left, and works."""
    process = client(name, 1, "once", state)
    said(process)
    assert said(process) == "on"
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
    end = time.monotonic() + 5
    while traces_of(owner) and time.monotonic() < end:
        time.sleep(0.05)
    assert traces_of(owner) == []
    assert [str(path) for path in state.rglob("*") if owner in path.name] == []


@pytest.mark.parametrize("name", ["native", "crun", "runc", "process"])
def test_a_killed_client_takes_its_sandboxes_along(name: str, tmp_path: pathlib.Path) -> None:
    """Twenty sandboxes full of processes that left their sessions are gone with the one process that held them."""
    state = tmp_path / "state"
    before = children()
    with adopting():
        process = client(name, 20 if name in ("native", "process") else 6, "hold", state)
        owner = said(process, name).split()[1]
        assert said(process) == "up"
        killed(process)
        left = settled(before, 20.0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}
    nothing_after_a_start(name, state, owner)


def test_a_killed_client_takes_the_members_of_its_pools_along(tmp_path: pathlib.Path) -> None:
    """Those that stand ready, the one that was claimed and the one that is being made in its place."""
    before = children()
    with adopting():
        process = client("native", 12, "pool", tmp_path / "state")
        owner = said(process, "native").split()[1]
        assert said(process) == "up"
        killed(process)
        left = settled(before, 20.0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}
    nothing_after_a_start("native", tmp_path / "state", owner)


@pytest.mark.parametrize("name", ["native", "crun", "process"])
def test_a_client_killed_in_a_creation_leaves_nothing(name: str, tmp_path: pathlib.Path) -> None:
    """Killed at random instants while eight sandboxes are being made and ended all the time."""
    state = tmp_path / "state"
    before = children()
    chance = random.Random(4)
    owners, left = [], {}
    with adopting():
        for _ in range(6):
            process = client(name, 8, "storm", state)
            owners.append(said(process, name).split()[1])
            time.sleep(chance.uniform(0.0, 0.12))
            killed(process)
            left = settled(before, 20.0)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            assert left == {}
    for owner in owners:
        nothing_after_a_start(name, state, owner)
