"""Files without a name (memfd_create), which hold memory."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, WHOEVER, Inside
from tests.escape.resources.holding import counts

pytestmark = [HOSTS_KERNEL, WHOEVER]

ATTEMPT = """
def one():
    held.append(os.memfd_create('x'))
    os.write(held[-1], BLOCK)
    return 1
said = f'held {fill(one)}'
"""


async def test_files_without_a_name_count(inside: Inside) -> None:
    """As memory of the sandbox."""
    await counts(inside, ATTEMPT)
