"""The end of a machine: no way to it from inside; and where it comes all the same, it is its own sandbox's alone."""

from __future__ import annotations

import os

import anyio
import pytest
from tests.escape.conftest import AT_MACHINES, Inside, machine_of

from proofbox.errors import SandboxLost

pytestmark = AT_MACHINES

REBOOT = "call('reboot', 0xfee1dead, 0x28121969, {}, b'x')"
ATTEMPTS = {
    **{
        f"reboot: {name}": REBOOT.format(number)
        for name, number in {
            "again": 0x1234567,
            "halt": 0xCDEF0123,
            "off": 0x4321FEDC,
            "with words": 0xA1B2C3D4,
            "into the loaded kernel": 0x45584543,
            "asleep": 0xD000FCE2,
            "by keys": 0x89ABCDEF,
        }.items()
    },
    "another kernel": "call('kexec_load', 0, 0, 0, 0)",
    "another kernel, from a file": "call('kexec_file_load', os.open('/bin/sh', 0), -1, 0, 0, 0)",
    "sysrq": "write('/proc/sysrq-trigger', 'b')",
    "panic where memory runs out": "write('/proc/sys/vm/panic_on_oom', '1')",
    "panic at a hung task": "write('/proc/sys/kernel/hung_task_panic', '1')",
    "a watchdog": "os.open('/dev/watchdog', os.O_WRONLY)",
    "asleep": "write('/sys/power/state', 'mem')",
}


async def test_a_machine_cannot_be_ended_from_inside(inside: Inside) -> None:
    """Neither started again, nor halted, nor made to panic."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EROFS", "ENOENT", "ENOSYS")
    assert (await inside.box.run("echo on")).stdout == "on\n"


@pytest.mark.parametrize("how", ["system_reset", "quit"])
async def test_the_end_of_a_machine_is_told_and_is_nobody_elses(inside: Inside, how: str) -> None:
    """As by someone who broke the machine's kernel: what runs is lost, QEMU is gone, another machine goes on."""
    if inside.user is not None:
        pytest.skip("who runs inside makes no difference")
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
