"""The end of a machine: made to panic or to sleep; and where it comes all the same, it is its own sandbox's alone."""

from __future__ import annotations

import os

import anyio
import pytest
from tests.escape.conftest import AT_MACHINES, WHOEVER, Inside, machine_of

from proofbox.errors import SandboxLost

pytestmark = AT_MACHINES

ATTEMPTS = {
    "sysrq": "write('/proc/sysrq-trigger', 'b')",
    "panic where memory runs out": "write('/proc/sys/vm/panic_on_oom', '1')",
    "panic at a hung task": "write('/proc/sys/kernel/hung_task_panic', '1')",
    "asleep": "write('/sys/power/state', 'mem')",
}


async def test_a_machine_cannot_be_ended_from_inside(inside: Inside) -> None:
    """Neither by an order, nor by what it does when something else goes wrong."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EROFS", "ENOENT")
    assert (await inside.box.run("echo on")).stdout == "on\n"


@WHOEVER
@pytest.mark.parametrize("how", ["system_reset", "quit"])
async def test_the_end_of_a_machine_is_told_and_is_nobody_elses(inside: Inside, how: str) -> None:
    """As by someone who broke the machine's kernel: what runs is lost, QEMU is gone, another machine goes on."""
    async with inside.open_box() as box:
        vm = machine_of(box)
        running = await box.start("sleep 600")
        await vm.monitor.command(how)
        with anyio.fail_after(60), pytest.raises(SandboxLost):
            await running.wait()
        with anyio.fail_after(60):
            await vm.exited()
        assert not os.path.exists(f"/proc/{vm.pid}")
    assert (await inside.box.run("echo on")).stdout == "on\n"
