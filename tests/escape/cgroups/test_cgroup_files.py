"""Files of control groups: leaving a group, raising its limits, freezing others."""

from __future__ import annotations

from tests.escape.conftest import Inside

THERE = {
    "mounts of them": """
said = [line for line in read('/proc/self/mountinfo').splitlines() if ' - cgroup' in line] or 'none'
""",
    "files of them": """
said = [place for place, folders, files in os.walk('/sys') if 'cgroup.procs' in files] or 'none'
""",
}


async def test_no_file_of_a_group_is_there(inside: Inside) -> None:
    """Nothing of them is mounted inside. (gVisor has groups of its own, with names of its own.)"""
    told = await inside.outcomes(THERE)
    if inside.own_kernel:
        assert "proofbox" not in str(told)
    else:
        assert set(told.values()) == {"none"}


WRITTEN = {
    # A directory can be made where nothing is mounted; it is nothing but that.
    "a group of its own": """
os.makedirs('/sys/fs/cgroup/mine', exist_ok=True)
write('/sys/fs/cgroup/mine/cgroup.procs', '0')
""",
    "by its name in /proc": "write('/proc/self/cgroup', '0::/')",
    "more memory": "write('/sys/fs/cgroup/memory.max', 'max')",
    "more memory, version 1": "write('/sys/fs/cgroup/memory/memory.limit_in_bytes', '-1')",
    "more processes": "write('/sys/fs/cgroup/pids.max', 'max')",
    "into the topmost group": "write('/sys/fs/cgroup/cgroup.procs', str(os.getpid()))",
    "everybody, frozen": "write('/sys/fs/cgroup/cgroup.freeze', '1')",
    "everybody, killed": "write('/sys/fs/cgroup/cgroup.kill', '1')",
}
GVISOR = {"more memory, version 1": "done"}


async def test_the_group_cannot_be_left_nor_changed(inside: Inside) -> None:
    """A process stays where it was born, with the limits of that."""
    await inside.expect(WRITTEN, "EPERM", "EACCES", "ENOENT", "EROFS", "EINVAL", gvisor=GVISOR)
