"""Netlink: the kernel's own events and its settings of networks, audit and filters (CVE-2022-0185, CVE-2023-32233)."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import Inside

ATTEMPTS = {
    "the kernel's device events": opening_socket(16, 3, 15),
    "audit": opening_socket(16, 3, 9),
    "netfilter": opening_socket(16, 3, 12),
    "process events": opening_socket(16, 3, 11),
    "generic netlink": opening_socket(16, 3, 16),
    "IPsec policies": opening_socket(16, 3, 6),
    "a file system's": opening_socket(16, 3, 19),
    "IPsec keys": opening_socket(15, 3, 2),
}


async def test_of_netlink_there_is_what_names_interfaces(inside: Inside) -> None:
    """And nothing else."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM", gvisor={"the kernel's device events": "done"})
