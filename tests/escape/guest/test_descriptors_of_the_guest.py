"""The descriptors of the guest in /proc, the channel to the host among them."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest(
    {
        "its descriptors": "os.readlink(f'/proc/{pid}/fd/3')",
        "its channel, by name": "os.open(f'/proc/{pid}/fd/3', os.O_RDWR)",
        "comparing its descriptors with ours": "call('kcmp', pid, os.getpid(), 0, 3, 0)",
    }
)
GVISOR = dict.fromkeys(("its descriptors", "its channel, by name"), "worked on 1")


async def test_the_channel_is_not_opened_again(inside: Inside) -> None:
    """No descriptor is seen, opened, or compared. (gVisor shows those of the first process: 3 is no socket that could
    be opened.)
    """
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", gvisor=GVISOR)
    assert (await inside.box.run("echo on")).stdout == "on\n"
