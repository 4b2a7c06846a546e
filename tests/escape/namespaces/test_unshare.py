"""unshare(2): new namespaces, which would bring capabilities back."""

from __future__ import annotations

from tests.escape.conftest import Inside
from tests.escape.namespaces.kinds import FLAGS

ATTEMPTS = {
    **{f"unshare {kind}": f"call('unshare', {flag})" for kind, flag in FLAGS.items()},
    "unshare time": "call('unshare', 0x80)",
}


async def test_no_namespace_is_made_by_unshare(inside: Inside) -> None:
    """Of no kind. (gVisor has namespaces of its own.)"""
    await inside.expect(ATTEMPTS, "EPERM", gvisor={"unshare cgroup": "done", "unshare time": "done"})
