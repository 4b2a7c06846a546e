"""Control groups: leaving them, raising their limits, and the program that one may name (CVE-2022-0492)."""

from __future__ import annotations

from tests.escape.conftest import Inside

NONE_THERE = """
said = [line for line in read('/proc/self/mountinfo').splitlines() if ' - cgroup' in line] or 'none'
"""
ATTEMPTS = {
    "mounts of them": NONE_THERE,
    "files of them": """
said = [place for place, folders, files in os.walk('/sys') if 'cgroup.procs' in files] or 'none'
""",
    "mounted as root does it": "call('mount', b'c', b'/mnt', b'cgroup', 0, b'none,name=mine')",
    # A directory can be made where nothing is mounted; it is nothing but that.
    "a group of its own": """
os.makedirs('/sys/fs/cgroup/mine', exist_ok=True)
write('/sys/fs/cgroup/mine/cgroup.procs', '0')
""",
    "into a new group from birth": """
import ctypes, struct
call('clone3', ctypes.create_string_buffer(struct.pack('11Q', 1 << 33, *[0] * 9, os.open('/', 0))), 88)
""",
    "a namespace of them": "call('unshare', 0x2000000)",
    "by its name in /proc": "write('/proc/self/cgroup', '0::/')",
}


async def test_the_group_cannot_be_left(inside: Inside) -> None:
    """Nothing of them is mounted inside, nothing can be, and a process stays where it was born."""
    before = (await inside.box.run("cat /proc/self/cgroup")).stdout
    await inside.expect(ATTEMPTS, "none", "EPERM", "EACCES", "ENOENT", "ENOSYS", "EROFS", "EINVAL")
    assert (await inside.box.run("cat /proc/self/cgroup")).stdout == before


async def test_no_path_of_the_hosts_groups_is_told(inside: Inside) -> None:
    """What a process sees of its group is the group's own root."""
    told = (await inside.box.run("cat /proc/self/cgroup")).stdout.splitlines()
    for line in told:
        if "proofbox" in line:
            raise AssertionError(line)
