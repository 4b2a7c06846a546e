"""Pages that are locked in memory."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, WHOEVER, Inside
from tests.escape.resources.holding import counts

pytestmark = [HOSTS_KERNEL, WHOEVER]

ATTEMPT = """
def one():
    held.append(mmap.mmap(-1, MIB))
    libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(held[-1]))), ctypes.c_size_t(MIB))
    held[-1].write(BLOCK)
    return 1
said = f'held {fill(one)}'
"""


async def test_locked_pages_count(inside: Inside) -> None:
    """As memory of the sandbox."""
    await counts(inside, ATTEMPT)
