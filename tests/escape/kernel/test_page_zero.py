"""The page at address 0: where the kernel once looked for functions by a pointer that was not set (CVE-2009-2692)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "mapped": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
place = libc.mmap(0, 4096, 7, 0x32, -1, 0)
if place == ctypes.c_void_p(-1).value:
    raise OSError(ctypes.get_errno(), '')
said = f'mapped at {place}'
""",
    "by a personality": "call('personality', 0x0100000)",
    "with everything to be executed": "call('personality', 0x0400000 | 0x0100000)",
}


async def test_nothing_lies_at_address_zero(inside: Inside) -> None:
    """Not for root either."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES")
