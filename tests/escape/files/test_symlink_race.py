"""A directory that becomes a symbolic link to the host and back, while the host reads and writes below it."""

from __future__ import annotations

from tests.escape.conftest import Inside, Witness
from tests.escape.files.racing import read_and_written

SWAP = """
import os
os.makedirs('/tmp/race/real', exist_ok=True)
open('/tmp/race/real/file', 'w').write('inside')
os.symlink({directory!r}, '/tmp/race/link')
while True:
    for name in ('real', 'link'):
        os.symlink(name, '/tmp/race/new'); os.rename('/tmp/race/new', '/tmp/race/way')
"""


async def test_a_race_of_links_leads_no_operation_out(inside: Inside, witness: Witness) -> None:
    """What was read was inside, and what was written is."""
    async with inside.open_box() as box:
        racing = await box.start(["python3", "-c", SWAP.format(directory=str(witness.directory))], user=inside.user)
        read = await read_and_written(box, "/tmp/race/way/file", "inside")
        await racing.kill()
    assert read <= {b"inside", b""}
