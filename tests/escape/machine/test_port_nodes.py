"""Nodes of devices of every number, so that one of them is a port of the machine's."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, Inside

pytestmark = AT_MACHINES

ATTEMPT = """
found = set()
for major in range(1, 512):
    for minor in range(4):
        path = f'/tmp/port{os.getuid()}'
        try:
            os.mknod(path, 0o20666, os.makedev(major, minor))
            os.open(path, os.O_RDWR)
            found.add(f'opened {major}:{minor}')
        except OSError as error:
            found.add(errno.errorcode[error.errno])
said = sorted(found)
"""


async def test_no_node_of_a_port_can_be_made(inside: Inside) -> None:
    """Its number is the kernel's choice: all are tried."""
    assert await inside.outcomes({"all numbers": ATTEMPT}) == {"all numbers": "['EPERM']"}
