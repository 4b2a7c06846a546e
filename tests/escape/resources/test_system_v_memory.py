"""System V shared memory that nobody attaches, and that stays when who made it is gone."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, WHOEVER, Inside
from tests.escape.resources.holding import counts

pytestmark = [HOSTS_KERNEL, WHOEVER]

ATTEMPT = """
def one():
    ident = libc.shmget(0, 4 * MIB, 0o1600)
    if ident < 0:
        raise OSError(ctypes.get_errno(), '')
    place = libc.shmat(ident, None, 0)
    ctypes.memset(place, 1, 4 * MIB)
    libc.shmdt(ctypes.c_void_p(place))
    return 4
said = f'held {fill(one)}'
"""


async def test_shared_memory_that_nobody_attaches_counts(inside: Inside) -> None:
    """As memory of the sandbox."""
    await counts(inside, ATTEMPT)
