"""/dev/kvm and its kin: virtual machines of one's own, and the way out of one."""

from __future__ import annotations

from tests.escape.attempts import opening
from tests.escape.conftest import Inside

ATTEMPTS = opening("kvm", "vhost-net", "vhost-vsock", "vfio/vfio", "vsock")


async def test_no_virtual_machine_is_made(inside: Inside) -> None:
    """The nodes are not there."""
    await inside.expect(ATTEMPTS, "ENOENT")
