"""Where the kernel lies in memory: what an exploit of it needs first."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    "symbols": "said = {line.split()[0] for line in read('/proc/kallsyms').splitlines()[:1000]} - {'0' * 16}",
    "modules": """
said = {line.split()[-1] for line in read('/proc/modules').splitlines() if '0x' in line} - {'0x' + '0' * 16} or 'empty'
""",
    **reading("/sys/kernel/notes", "/proc/self/stack", "/sys/kernel/kexec_crash_size"),
}
GVISOR = {"modules": "empty"}


async def test_addresses_of_the_kernel_are_not_told(inside: Inside) -> None:
    """Neither of its functions, nor of its modules."""
    await inside.expect(ATTEMPTS, "set()", "empty", *CLOSED, gvisor=GVISOR)
