"""Interrupts, memory types and what wakes the machine: settings of its hardware, in /proc."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/acpi/wakeup"),
    **reading("/proc/interrupts", "/sys/firmware/acpi/tables/DSDT"),
}


async def test_the_hardware_is_not_set(inside: Inside) -> None:
    """Nor is it read how much it has to do."""
    await inside.expect(ATTEMPTS, "empty", *CLOSED)
