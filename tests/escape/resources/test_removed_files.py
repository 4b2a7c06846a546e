"""Files in memory that are removed while they are open."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, WHOEVER, Inside
from tests.escape.resources.holding import counts

pytestmark = [HOSTS_KERNEL, WHOEVER]

ATTEMPT = """
def one():
    held.append(open(f'/dev/shm/x{len(held)}', 'wb', buffering=0))
    os.unlink(held[-1].name)
    held[-1].write(BLOCK)
    return 1
said = f'held {fill(one)}'
"""


async def test_removed_files_count(inside: Inside) -> None:
    """As memory of the sandbox."""
    await counts(inside, ATTEMPT)
