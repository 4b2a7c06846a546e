"""ptrace(2) of the guest: whoever takes it over speaks to the host in its name."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest(
    {
        "attach": "call('ptrace', 16, pid, 0, 0)",
        "seize": "call('ptrace', 0x4206, pid, 0, 0)",
    }
)


async def test_the_guest_is_not_traced(inside: Inside) -> None:
    """Not dumpable and with more capabilities than anybody inside: as its own user, too, nobody gets at it."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES")
    assert (await inside.box.run("echo on")).stdout == "on\n"
