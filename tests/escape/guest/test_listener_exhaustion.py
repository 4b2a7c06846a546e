"""Exhausting the process of the host's that listens: output, a file and a pipe without end."""

from __future__ import annotations

import resource

import anyio
from tests.escape.conftest import Inside

from proofbox.model.limits import MIB

SENT = 16 * MIB
KEPT = MIB // 4
MOST = 12 * MIB
"""By which the listener may grow meanwhile."""


def peak() -> int:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_output_without_end_is_not_held(inside: Inside) -> None:
    """What is more than was asked for is dropped where it comes from, on both pipes."""
    before = peak()
    text = f"head -c {SENT} /dev/zero; head -c {SENT} /dev/zero >&2"
    result = await inside.box.run(text, user=inside.user, keep=KEPT, timeout=120)
    assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (KEPT, KEPT)
    assert peak() - before <= MOST


async def test_a_file_without_end_is_read_to_a_limit(inside: Inside) -> None:
    """The host takes as much as it asked for, of a device that never ends."""
    before = peak()
    assert len(await inside.box.read("/dev/zero", limit=KEPT, user=inside.user)) == KEPT
    assert peak() - before <= MOST


async def test_a_pipe_that_nobody_writes_holds_nobody_up(inside: Inside) -> None:
    """The host waits for it in one place and goes on in all others, and can give it up."""
    await inside.box.run("rm -f /tmp/pipe; mkfifo /tmp/pipe", user=inside.user)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(lambda: inside.box.read("/tmp/pipe", user=inside.user))
        with anyio.fail_after(60):
            for number in range(3):
                assert (await inside.box.run(f"echo {number}", user=inside.user)).stdout == f"{number}\n"
                await inside.box.read("/etc/passwd", user=inside.user)
        group.cancel_scope.cancel()
    assert (await inside.box.run("echo on", user=inside.user)).stdout == "on\n"
