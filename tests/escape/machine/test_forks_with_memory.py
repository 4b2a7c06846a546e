"""Forks with memory: what a child knows of its siblings, having been one with them, or reaches of what they were."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.escape.conftest import WHOEVER, Inside, machine_of
from tests.escape.machine.choices import told

from proofbox.host.home import data_home
from proofbox.host.threads import descendants
from proofbox.model.template import Template
from proofbox.runtimes.oci.runtime import OciHandle
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

pytestmark = [
    pytest.mark.parametrize("host", ["runsc", "microvm"], indirect=True, scope="package"),
    pytest.mark.slow,  # what they fork takes seconds to save
]

GVISOR_CHOOSES = {"where the heap lies", "where the stack lies"}
"""The same in all of its sandboxes, forked or not: of a program at a fixed address, and as it tells."""

RUNNING = """
import json, os, time
kept, held = 'of the parent', open('/dev/urandom', 'rb', buffering=0)
while True:
    if os.path.exists('/tmp/keep'):
        kept = open('/tmp/keep').read()
        os.remove('/tmp/keep')
    if os.path.exists('/tmp/ask'):
        os.remove('/tmp/ask')
        drawn = [os.getrandom(16).hex(), held.read(16).hex(), open('/proc/sys/kernel/random/boot_id').read()]
        open('/tmp/.told', 'w').write(json.dumps({'kept': kept, 'drawn': drawn}))
        os.rename('/tmp/.told', '/tmp/told')
    time.sleep(0.02)
"""
"""A program that runs on, with a file held open, and answers when it is asked."""


@pytest.fixture(scope="module")
async def parent(host: Host, template: Template | str, anyio_backend: str) -> AsyncIterator[Sandbox]:
    """In which that program runs."""
    async with host.open_sandbox(template) as box:
        await box.write("/tmp/running.py", RUNNING)
        assert (await box.run("setsid python3 -S /tmp/running.py </dev/null >/dev/null 2>&1 & echo on")).ok
        await asked(box)
        yield box


async def asked(box: Sandbox) -> dict[str, Any]:
    """What the program that runs on there says now."""
    result = await box.run(
        "touch /tmp/ask; until test -e /tmp/told; do sleep 0.02; done; cat /tmp/told; rm /tmp/told", timeout=60
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@WHOEVER
async def test_children_choose_differently(inside: Inside, parent: Sandbox) -> None:
    """What a program draws that went on in all of them, and what a new one is given, is nobody else's."""
    async with parent.fork(2, memory=True) as kids:
        drawn = [value for box in (*kids, parent) for value in (await asked(box))["drawn"]]
        one, two, three = [await told(box) for box in (*kids, parent)]
    assert len(set(drawn)) == len(drawn) == 9
    alike = GVISOR_CHOOSES if inside.own_kernel else set()
    for left, right in ((one, two), (one, three), (two, three)):
        assert {name for name, value in left.items() if right[name] == value} <= alike


@WHOEVER
async def test_what_one_child_writes_is_in_no_other_memory(inside: Inside, parent: Sandbox) -> None:
    """After they parted: in a program's memory and in the pages of a file, with the twin of that program looking."""
    async with parent.fork(2, memory=True) as (one, two):
        await one.write("/tmp/.keep", "of one child")
        await one.run(
            "mv /tmp/.keep /tmp/keep; while test -e /tmp/keep; do sleep 0.02; done; echo changed >> /tmp/running.py"
        )
        assert (await asked(one))["kept"] == "of one child"
        for box in (two, parent):
            assert (await asked(box))["kept"] == "of the parent"
            assert await box.read("/tmp/running.py") == RUNNING.encode()
        async with two.fork(memory=True) as (later,):
            assert (await asked(later))["kept"] == "of the parent"


async def test_the_saved_memory_is_nowhere_inside(inside: Inside, parent: Sandbox) -> None:
    """Not by the paths that it has on the host, while others are being made from it or after."""
    home = str(data_home())
    attempts = {
        "the store": f"os.listdir({home!r})",
        "what is being made": f"os.listdir({home + '/making'!r})",
        "through the first process": f"os.listdir('/proc/1/root' + {home + '/making'!r})",
        "by its name": "said = [p for p, _, files in os.walk('/') if 'checkpoint.img' in files] or 'none'",
    }
    async with parent.fork(memory=True) as (child,):
        found = await inside.outcomes(attempts, child)
    assert set(found.values()) <= {"ENOENT", "EACCES", "none"}, found
    assert not list(Path(home).glob("making/*/checkpoint.img"))


def held(box: Sandbox) -> dict[tuple[int, int], str]:
    """What the processes of a sandbox hold on this host and can write to, but for what each makes for itself."""
    handle = box._life.handle
    process = handle.process if isinstance(handle, OciHandle) else machine_of(box)
    assert process is not None
    found = {}
    for pid in descendants(process.pid):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target, about = os.readlink(entry), entry.stat()
                told = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text()
            except FileNotFoundError:  # closed meanwhile
                continue
            reads = int(told.split("flags:")[1].split()[0], 8) & os.O_ACCMODE == os.O_RDONLY
            if not (reads or stat.S_ISCHR(about.st_mode) or target.startswith("anon_inode:") or sealed(entry, target)):
                found[about.st_dev, about.st_ino] = target
    return found


def sealed(entry: Path, target: str) -> bool:
    """Whether it is memory that nobody can write to, however it was opened."""
    if not target.startswith("/memfd:"):
        return False
    with entry.open("rb") as file:
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into another user's process")
@WHOEVER
async def test_their_processes_share_nothing_that_can_be_written(inside: Inside, parent: Sandbox) -> None:
    """Who has broken out of a child's kernel has no way to a sibling: no channel, no pipe, no file of memory is held by
    both.
    """
    async with parent.fork(2, memory=True) as kids:
        holds = [held(box) for box in (*kids, parent)]
    assert all(any("socket:" in target for target in each.values()) for each in holds)
    for index, one in enumerate(holds):
        for other in holds[index + 1 :]:
            assert {one[key] for key in one.keys() & other.keys()} == set()
