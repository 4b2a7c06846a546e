"""The firmware and the buses of a machine, which are QEMU's, as files."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, Inside

pytestmark = AT_MACHINES

ATTEMPTS = {
    "QEMU's configuration": "os.listdir('/sys/firmware/qemu_fw_cfg')",
    "tables of the firmware": "os.listdir('/sys/firmware/acpi/tables')",
    "the firmware's map of memory": "os.listdir('/sys/firmware/memmap')",
    "tables, overridden": "os.listdir('/sys/kernel/config/acpi/table')",
    "devices, enabled": "os.listdir('/sys/bus/platform/devices')",
    "buses": "os.listdir('/sys/bus/pci/devices')",
    "what is where": "said = [line for line in read('/proc/iomem').splitlines() if not line.strip().startswith('0')] "
    "or 'no addresses'",
}


async def test_no_firmware_is_read(inside: Inside) -> None:
    """No table of the machine's, and no bus of it."""
    await inside.expect(ATTEMPTS, "ENOENT", "EPERM", "EACCES", "no addresses")
