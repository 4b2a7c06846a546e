"""/dev/mem and its kin: the machine's memory, ports and registers as files."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    **opening("mem", "kmem", "port", "cpu/0/msr"),
    "the processor as a file": "os.open('/dev/cpu/0/cpuid', os.O_RDONLY)",
}


async def test_no_memory_of_the_machine_is_a_file(inside: Inside) -> None:
    """The nodes are not there."""
    await inside.expect(ATTEMPTS, "ENOENT")
