"""What takes more than a sandbox has, until none is left; whom it hits, and what it costs."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
import pytest
from tests.escape.conftest import Inside

from proofbox.errors import OperationFailed, SandboxLost
from proofbox.model.limits import MIB, Limits
from proofbox.model.outcome import HitLimit
from proofbox.runtimes.microvm.inside import guest_memory
from proofbox.runtimes.microvm.vmm import OVERHEAD
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.result import CommandResult

LIMITS = Limits(memory=64 * MIB, disk=16 * MIB, inodes=300, processes=40)
SECONDS = (0.2, 5.0, 60.0)
"""Given to it; the longer ones for hosts on which it does not get far before."""


def enforced(inside: Inside, limits: Limits) -> Limits:
    """Those of them that this host can hold."""
    left = {*msgspec.structs.asdict(limits)} - {*inside.host.probe.enforces}
    return msgspec.structs.replace(limits, **{name: getattr(Limits(), name) for name in left})


async def lives(box: Sandbox) -> bool:
    """A command starts, once what was killed has let go of its numbers."""
    try:
        return (await box.run("rm -rf /dev/shm/x /tmp/[0-9x]*; echo on")).stdout == "on\n"
    except OperationFailed:
        return False


def was_stopped(result: CommandResult) -> bool:
    """Before its time was up."""
    return not result.ok and not (isinstance(result.outcome, HitLimit) and result.outcome.kind == "command_wall")


async def goes_off(
    inside: Inside, limit: str, bomb: str, stopped: Callable[[CommandResult], bool] = was_stopped
) -> None:
    """It is stopped at ``limit``, and neither the host nor another sandbox pays for it. Where memory cannot be taken
    from one program alone, the sandbox ends with it, and says so.
    """
    if limit not in ("command_wall", *inside.host.probe.enforces):
        pytest.skip(f"nothing on this host enforces the limit {limit}")
    async with inside.open_box(limits=enforced(inside, LIMITS)) as box:
        peak = None
        try:
            for seconds in SECONDS:
                result = await box.run(bomb, timeout=seconds)
                await box.kill_all()  # a command may end, and leave its bomb in the background
                with anyio.fail_after(60):
                    while not await lives(box):
                        pass
                if stopped(result):
                    break
            assert stopped(result), result
            peak = (await box.usage()).memory_peak
        except SandboxLost as lost:
            if lost.reason != "memory" or "memory" not in inside.host.probe.fatal:
                raise
        assert await lives(inside.box)
    if peak is not None and "memory" in inside.host.probe.enforces:
        machine = inside.host.runtime_name == "microvm"  # all of it counts, and QEMU
        assert peak <= (guest_memory(LIMITS) + max(OVERHEAD.values()) if machine else LIMITS.memory or 0)
