"""setns(2): entering namespaces that are there, one's own, the guest's, or the host's."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    **{
        f"join its own {kind} again": f"call('setns', os.open('/proc/self/ns/{kind}', 0), 0)"
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    },
    "join the guest's by its pidfd": "call('setns', call('pidfd_open', 1, 0), 0x20000)",
}


async def test_no_namespace_is_entered(inside: Inside) -> None:
    """Of no process, its own included."""
    await inside.expect(ATTEMPTS, "EPERM")
