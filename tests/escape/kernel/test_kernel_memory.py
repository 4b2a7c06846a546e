"""/proc/kcore and its kin: the kernel's memory, and which page of the machine is whose."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    **reading(
        "/proc/kcore",
        "/proc/kpageflags",
        "/proc/kpagecount",
        "/proc/kpagecgroup",
        "/proc/pagetypeinfo",
        "/proc/slabinfo",
        "/proc/vmallocinfo",
    ),
    "where its own pages lie in the machine": """
import ctypes
held = ctypes.create_string_buffer(8192)
with open('/proc/self/pagemap', 'rb') as pages:
    pages.seek(ctypes.addressof(held) // 4096 * 8)
    entry = int.from_bytes(pages.read(8), 'little')
said = 'told' if entry & (1 << 55) - 1 else 'empty'
""",
}


async def test_no_memory_of_the_kernels_is_read(inside: Inside) -> None:
    """Not there, not allowed, or empty; a program's pages have no place that it could know (rowhammer)."""
    await inside.expect(ATTEMPTS, "empty", *CLOSED)
