"""Settings of the kernel, which are the whole machine's."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing
from tests.escape.conftest import Inside

ATTEMPTS = changing(
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
)
OPENED = dict.fromkeys(
    (
        "/proc/sys/net/ipv4/ip_forward opened again by its descriptor",
        "/proc/sys/vm/overcommit_memory opened again by its descriptor",
    ),
    "done",
)
"""At gVisor, whose own they are."""


async def test_the_kernels_settings_stay(inside: Inside) -> None:
    """Whichever way they are written."""
    await inside.expect(ATTEMPTS, *CLOSED, gvisor=OPENED)
