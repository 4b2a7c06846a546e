"""The path of a control group tells where on the host it lies, and who else is there."""

from __future__ import annotations

from tests.escape.conftest import Inside


async def test_no_path_of_the_hosts_groups_is_told(inside: Inside) -> None:
    """What a process sees of its group is the group's own root."""
    told = (await inside.box.run("cat /proc/self/cgroup")).stdout.splitlines()
    for line in told:
        if "proofbox" in line:
            raise AssertionError(line)
