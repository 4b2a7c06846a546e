"""Files of another sandbox: in the directories that everybody writes to, and through its processes."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    **{
        f"a file in {place}": f"read('{place}/neighbour')" for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev")
    },
    "a file of its process": "read(f'/proc/{GIVEN[\"neighbour\"]}/root/tmp/neighbour')",
}


async def test_files_of_a_neighbour_are_not_there(inside: Inside, neighbours_pid: int) -> None:
    """Its directories are its own, whatever they are called."""
    await inside.expect(ATTEMPTS, "ENOENT", neighbour=neighbours_pid)
