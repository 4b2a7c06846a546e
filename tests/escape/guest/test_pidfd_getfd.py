"""pidfd_getfd(2): a copy of a descriptor of the guest's, the channel."""

from __future__ import annotations

from tests.escape.attempts import on_the_guest
from tests.escape.conftest import Inside

ATTEMPTS = on_the_guest(
    {
        "its channel, by pidfd": "call('pidfd_getfd', call('pidfd_open', pid, 0), 3, 0)",
        "its first descriptor": "call('pidfd_getfd', call('pidfd_open', pid, 0), 0, 0)",
    }
)


async def test_no_descriptor_of_the_guest_is_copied(inside: Inside) -> None:
    """The call is refused before it looks whose they are."""
    await inside.expect(ATTEMPTS, "EPERM")
