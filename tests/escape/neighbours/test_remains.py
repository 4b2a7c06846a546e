"""What a sandbox has left behind when it was destroyed: files, memory, programs."""

from __future__ import annotations

from tests.escape.conftest import Inside


async def test_a_neighbour_that_was_destroyed_leaves_nothing(inside: Inside) -> None:
    """A new sandbox finds no file, object, key or port of the one before it."""
    async with inside.open_box() as first:
        await first.run(
            "echo x > /tmp/left; echo x > /dev/shm/left; echo x > /etc/left; nohup sleep 60 > /dev/null 2>&1 &"
        )
        await inside.outcomes({"shared": "call('shmget', 4721, 4096, 0o1666)"}, first)
    async with inside.open_box() as second:
        programs = "grep -lx sleep /proc/[0-9]*/comm"
        found = await second.run(f"cat /tmp/left /dev/shm/left /etc/left; {programs}; tail -n +2 /proc/sysvipc/shm")
    assert found.stdout == ""
