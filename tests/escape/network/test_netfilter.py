"""Filters of packets: the old interface of setsockopt(2), with a history of holes (CVE-2021-22555)."""

from __future__ import annotations

from tests.escape.attempts import NET
from tests.escape.conftest import Inside

ATTEMPTS = {
    "a packet filter": NET + "s.setsockopt(0, 64, bytes(96))",
    "its table of filters": NET + "s.getsockopt(0, 64, 84)",
    "a packet filter of IPv6": NET.replace("AF_INET", "AF_INET6") + "s.setsockopt(41, 64, bytes(96))",
    "a filter of ARP": NET + "s.setsockopt(0, 96, bytes(96))",
}


async def test_no_filter_of_packets_is_set(inside: Inside) -> None:
    """Nor is one read. (gVisor takes that of ARP for an option that it does not know.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "ENOENT", "ENOPROTOOPT", gvisor={"a filter of ARP": "done"})
