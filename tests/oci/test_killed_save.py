"""``kill -9`` of the client at every step of saving a gVisor sandbox's memory, and of starting others from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from proofbox.errors import Refused
from proofbox.testing.needs import skip_unless_required
from proofbox.testing.orphans import adopting, children, settled, traces_of

pytestmark = pytest.mark.container

CLIENT = """
import os, signal, sys
import anyio
from proofbox.errors import Refused
from proofbox.host import copies
from proofbox.model.limits import MIB, Limits
from proofbox.runtime import registry
from proofbox.runtimes.oci import memory
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store
from proofbox.testing.small import NAME, small_template

at, seen = sys.argv[1], []

def look(frame, event, arg):
    name = frame.f_code.co_filename
    if name not in (memory.__file__, copies.__file__):
        return None
    if event in ("call", "return"):
        step = f"{event}:{frame.f_code.co_name}:{frame.f_lineno}"
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step not in seen:
            seen.append(step)
    return look

async def main():
    try:
        host = await Host.local("runsc")
    except Refused as refused:
        print("refused", refused, flush=True)
        return
    limits = Limits(disk=16 * MIB, wall=3000.0)
    template = small_template(open_store()) if at == "count" else NAME
    async with host.open_sandbox(template, limits=limits) as box:
        await box.run("sleep 100000 </dev/null >/dev/null 2>&1 &")
        print("owner", registry.owner().id, flush=True)
        if at == "none":
            return
        sys.settrace(look)
        async with box.fork(2, memory=True) as kids:
            for kid in kids:
                assert (await kid.run("true")).ok
        sys.settrace(None)
    print(*seen, flush=True)

anyio.run(main)
"""


@dataclass
class Clients:
    """Processes that hold a sandbox each, and where they keep what they have."""

    place: Path

    def run(self, at: str) -> list[str]:
        """What one says that is to be killed at that step; what it leaves are no processes. Empty if it did not come
        there: whether a coroutine waits at a place depends on who is faster.
        """
        places = {"PROOFBOX_STATE": str(self.place / "state"), "PROOFBOX_HOME": str(self.place / "home")}
        before = children()
        with adopting():
            ran = subprocess.run(
                [sys.executable, "-c", CLIENT, at],
                env=os.environ | places,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            left = settled(before, 20.0)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        if ran.stdout.startswith("refused"):
            skip_unless_required("runsc", Refused("runtime 'runsc'", (ran.stdout,)))
        assert left == {}, at
        assert ran.returncode in ((0, -signal.SIGKILL) if ":" in at else (0,)), ran.stderr
        return ran.stdout.splitlines() if ":" not in at or ran.returncode else []

    def left(self, owner: str) -> list[str]:
        """Of one that was killed: what bears its name, and what it was making."""
        named = [str(path) for path in (self.place / "state").rglob("*") if owner in path.name]
        return named + traces_of(owner) + [str(path) for path in (self.place / "home/making").glob("*")]


@pytest.mark.slow
def test_killed_at_any_step_it_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    """Wherever something begins, ends or is waited for in what saves and copies: no process is left at once, and the
    processes after it have swept the rest, and make sandboxes.
    """
    clients = Clients(tmp_path)
    _, steps = clients.run("count")
    assert {"call:remember", "call:_saved", "call:_ask", "call:_start", "call:copy_to_memory", "call:create_like"} <= {
        step.rpartition(":")[0] for step in steps.split()
    }
    owners = {}
    for step in steps.split():
        if said := clients.run(step) or clients.run(step):
            owners[step] = said[0].split()[1]
            assert clients.left(owners[step]), step  # there is something to sweep, or this proves nothing
    assert len(owners) >= len(steps.split()) - 3
    clients.run("none")
    assert {step: left for step, owner in owners.items() if (left := clients.left(owner))} == {}
