"""``kill -9`` of the client at its hardest: a child that it forked lives on and holds copies of its descriptors."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.native.conftest import gone

from proofbox.host import cgroup_apply
from proofbox.host.cgroup import TOP, find_place
from proofbox.model.template import Template
from proofbox.testing.orphans import adopting, children, settled

pytestmark = pytest.mark.container

CLIENT = """
import os, sys, time, anyio
from proofbox.host.owner import Owner
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtimes.native import NativeRuntime

async def main(root, mode):
    owner = Owner.register()
    runtime = NativeRuntime(owner)
    template = Template(digest="", name="t", layers=(Layer("/", root), Layer("/usr", "/usr")), env={})
    first = await runtime.create(SandboxSpec(id="first", template="t", limits=Limits(disk=1 << 20)), template)
    print(owner.id, runtime._launcher.pid, first.pid, flush=True)
    if mode == "fork" and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    for number in range(10**6):
        handle = await runtime.create(SandboxSpec(id=f"b{number}", template="t", limits=Limits(disk=1 << 20)), template)
        print(handle.pid, flush=True)
        if mode == "fork":
            await anyio.sleep(60)
        await runtime.destroy(handle)

anyio.run(main, sys.argv[1], sys.argv[2])
"""


def start(template: Template, state: Path, mode: str) -> subprocess.Popen[str]:
    """A client in a session of its own."""
    argv = [sys.executable, "-c", CLIENT, template.layers[0].source, mode]
    env = {**os.environ, "PROOFBOX_STATE": str(state), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)


def await_gone(*pids: int) -> bool:
    """Whether these processes end, however busy the host is."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if gone(*pids):
            return True
        time.sleep(0.002)
    return False


def groups_of(owner: str) -> list[str]:
    """What is left of the owner's control groups."""
    return [str(root) for root in find_place().roots() if (root / TOP / owner).exists()]


def test_a_forked_child_keeps_no_sandbox_alive(template: Template, tmp_path: Path) -> None:
    """The launcher watches the client itself: the control socket stays open, in the child."""
    with start(template, tmp_path / "state", "fork") as client:
        assert client.stdout is not None
        owner, launcher, first = client.stdout.readline().split()
        second = client.stdout.readline()
        client.kill()
        assert await_gone(int(launcher), int(first), int(second))
        assert groups_of(owner) == []
        os.killpg(client.pid, signal.SIGKILL)


@pytest.mark.parametrize("launcher_too", [False, True])
def test_killed_at_random_instants(template: Template, tmp_path: Path, launcher_too: bool) -> None:
    """In the middle of making and ending sandboxes: the client alone, or its launcher a moment before it."""
    chance = random.Random(7)
    before = children()
    for _ in range(6):
        with adopting(), start(template, tmp_path / "state", "storm") as client:
            assert client.stdout is not None
            owner, launcher, _ = client.stdout.readline().split()
            time.sleep(chance.uniform(0, 0.02))
            if launcher_too:
                os.kill(int(launcher), signal.SIGKILL)
            client.kill()
            client.wait()
            left = settled(before, 20.0)
        assert left == {}
        if launcher_too:  # nobody was left to remove them; the reaper of the next process does
            cgroup_apply.sweep(find_place(), owner)
        assert groups_of(owner) == []
