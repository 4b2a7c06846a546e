"""The hardware of a machine, which is QEMU's: ports, registers of the processor, tables, instructions that call it."""

from __future__ import annotations

import pytest
from tests.escape.conftest import AT_MACHINES, Inside
from tests.escape.test_system_calls import CODE

from proofbox.host.seccomp.policy import machine

pytestmark = AT_MACHINES

ATTEMPTS = {
    "all ports": "call('iopl', 3)",
    "the ports of the firmware's configuration": "call('ioperm', 0x510, 12, 1)",
    "the port that ends QEMU": "call('ioperm', 0x501, 1, 1)",
    "ports as a file": "os.open('/dev/port', os.O_RDWR)",
    "memory as a file": "os.open('/dev/mem', os.O_RDWR)",
    "registers as a file": "os.open('/dev/cpu/0/msr', os.O_RDWR)",
    "the processor as a file": "os.open('/dev/cpu/0/cpuid', os.O_RDONLY)",
    "the clock": "os.open('/dev/rtc0', os.O_RDWR)",
    "its random numbers": "os.open('/dev/hwrng', os.O_RDONLY)",
    "a way to the host": "os.open('/dev/vsock', os.O_RDWR)",
    "QEMU's configuration": "os.listdir('/sys/firmware/qemu_fw_cfg')",
    "tables of the firmware": "os.listdir('/sys/firmware/acpi/tables')",
    "the firmware's map of memory": "os.listdir('/sys/firmware/memmap')",
    "tables, overridden": "os.listdir('/sys/kernel/config/acpi/table')",
    "devices, enabled": "os.listdir('/sys/bus/platform/devices')",
    "buses": "os.listdir('/sys/bus/pci/devices')",
    "what is where": "said = [line for line in read('/proc/iomem').splitlines() if not line.strip().startswith('0')] "
    "or 'no addresses'",
}


async def test_no_hardware_is_reached(inside: Inside) -> None:
    """No port, no register, no table of the machine, by call or by file."""
    await inside.expect(ATTEMPTS, "ENOENT", "EPERM", "EACCES", "ENOSYS", "no addresses")


INSTRUCTIONS = {
    "in, from the firmware's configuration": "66ba1105ec",
    "out, to the port of resets": "66ba6400b0feee",
    "out, to the console": "66baf803b041ee",
    "read a register": "b91b0000000f32",
    "write a register": "b91b00000031c031d20f30",
    "halt": "f4",
    "no interrupts": "fa",
    "forget the caches": "0f08",
    "load the table of interrupts": "0f0118",
    "another root of pages": "0f22d8",
    "count": "31c90f33",
    "call what is below, Intel's way": "0f01c1",
    "call what is below, AMD's way": "0f01d9",
    "become what is below": "0f01c4",
    "hand over to what is below": "0f01d8",
}


@pytest.mark.skipif(machine() != "x86_64", reason="the instructions are this machine's")
async def test_an_instruction_of_the_kernels_ends_its_program(inside: Inside) -> None:
    """Each is a program of a few bytes, whose end is a signal."""
    attempts = {name: f"{CODE}run(bytes.fromhex({code!r} 'c3'))" for name, code in INSTRUCTIONS.items()}
    told = await inside.outcomes(attempts)
    assert {name: outcome for name, outcome in told.items() if outcome not in ("signal 4", "signal 11")} == {}
    assert (await inside.box.run("echo on")).stdout == "on\n"
