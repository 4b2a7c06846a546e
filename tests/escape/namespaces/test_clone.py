"""clone(2) with flags: a child that is born in new namespaces."""

from __future__ import annotations

from tests.escape.conftest import Inside
from tests.escape.namespaces.kinds import BORN, FLAGS

ATTEMPTS = {f"a child in a new {kind}": BORN.format(flag) for kind, flag in FLAGS.items()}


async def test_no_child_is_born_in_a_new_namespace(inside: Inside) -> None:
    """Of no kind. (gVisor has namespaces of its own.)"""
    await inside.expect(ATTEMPTS, "EPERM", gvisor={"a child in a new mnt": "done"})
