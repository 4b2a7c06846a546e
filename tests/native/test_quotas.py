"""What the kernel counts for each user is each sandbox's own: none takes it from another one, or from the host."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.conftest import open_host

from proofbox.host.idmap import find_ids
from proofbox.sandbox.host import Host

pytestmark = [pytest.mark.anyio, pytest.mark.container]

INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")

TAKE_ALL = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
taken = 0
while libc.inotify_init() >= 0:
    taken += 1
print(taken, ctypes.get_errno(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def native() -> AsyncIterator[Host]:
    async with open_host("native") as found:
        yield found


@pytest.mark.skipif(not find_ids().full, reason="without ranges of ids all sandboxes count as their user")
async def test_one_sandbox_takes_no_inotify_instance_from_others(native: Host) -> None:
    """As its root it takes all that it can get; a neighbour and the host's root have theirs, and it has no more than
    one user may have.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    async with native.open_sandbox() as greedy, native.open_sandbox() as other:
        command = await greedy.start(["python3", "-c", TAKE_ALL], stdin=True, keep=None)
        told = b""
        with anyio.fail_after(60):
            async for _, data in command.output():
                told += data
                if b"\n" in told:
                    break
        taken = int(told.split()[0])
        assert 0 < taken <= int(INSTANCES.read_text())
        own = libc.inotify_init()
        assert own >= 0, os.strerror(ctypes.get_errno())
        os.close(own)
        result = await other.run(["python3", "-c", TAKE_ALL], stdin=b"")
        assert int(result.stdout.split()[0]) == taken, result.stderr
        await command.kill()
