"""More than a machine has: memory, processes, disk and output, until none is left; whom it hits, and what it costs."""

from __future__ import annotations

import anyio
import pytest
from tests.escape.conftest import AT_MACHINES, Inside

from proofbox.errors import OperationFailed, SandboxLost
from proofbox.model.limits import MIB, Limits
from proofbox.runtimes.microvm.inside import guest_memory
from proofbox.runtimes.microvm.vmm import OVERHEAD
from proofbox.sandbox.api import Sandbox

pytestmark = AT_MACHINES

LIMITS = Limits(memory=64 * MIB, disk=16 * MIB, processes=40)
BOMBS = {
    "memory": "tail /dev/zero",
    "memory that no process has": "cat /dev/zero > /dev/shm/x",
    "disk": "cat /dev/zero > /tmp/x",
    "inodes": "i=0; while mkdir /tmp/$i; do i=$((i + 1)); done 2> /dev/null",
    "processes": "bomb() { bomb | bomb & }; bomb; wait",
    "pages of the kernel": "exec python3 -S -c 'import socket\nall = []\nwhile True: all.append(socket.socketpair())'",
    "output": "yes",
}


async def lives(box: Sandbox) -> bool:
    """A command starts, once what was killed has let go of its numbers."""
    try:
        return (await box.run("rm -rf /dev/shm/x /tmp/[0-9x]*; echo on")).stdout == "on\n"
    except OperationFailed:
        return False


@pytest.mark.slow
async def test_a_bomb_goes_off_inside(inside: Inside) -> None:
    """One after the other in one machine: each is stopped, and neither the host nor another machine pays for it."""
    if inside.user is not None:
        pytest.skip("the limits are the machine's")
    async with inside.open_box(limits=LIMITS) as box:
        for name, bomb in BOMBS.items():
            try:
                await box.run(bomb, timeout=2)
            except SandboxLost as lost:
                pytest.fail(f"{name} ended more than its own program: {lost}")
            await box.kill_all()  # a command may end, and leave its bomb in the background
            with anyio.fail_after(60):
                while not await lives(box):
                    pass
                assert await lives(inside.box), name
        used = await box.usage()
    if used.memory_peak is not None:
        assert used.memory_peak <= guest_memory(LIMITS) + max(OVERHEAD.values()), used


async def test_output_that_nobody_reads_is_in_nobodys_way(inside: Inside) -> None:
    """The port is one for all: a command that fills all that it is given credit for leaves room for others."""
    floods = [await inside.box.start("cat /dev/zero", user=inside.user, keep=None) for _ in range(3)]
    with anyio.fail_after(60):
        for number in range(3):
            assert (await inside.box.run(f"echo {number}", user=inside.user)).stdout == f"{number}\n"
    for flood in floods:
        await flood.kill()
