"""New namespaces, which would bring capabilities back, and the way into old ones."""

from __future__ import annotations

from tests.escape.conftest import Inside

FLAGS = {
    "mnt": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "user and mnt at once": 0x10020000,
}
BORN = "child = call('clone', {} | 17, 0, 0, 0, 0)\nif child == 0: os._exit(0)\nos.waitpid(child, 0)"
EPERM = {
    **{f"unshare {kind}": f"call('unshare', {flag})" for kind, flag in FLAGS.items()},
    "unshare time": "call('unshare', 0x80)",
    **{f"a child in a new {kind}": BORN.format(flag) for kind, flag in FLAGS.items()},
    **{
        f"join its own {kind} again": f"call('setns', os.open('/proc/self/ns/{kind}', 0), 0)"
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    },
    "join the guest's by its pidfd": "call('setns', call('pidfd_open', 1, 0), 0x20000)",
    "the user namespace above": "import fcntl; fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xb702)",
    "the PID namespace above": "import fcntl; fcntl.ioctl(os.open('/proc/self/ns/pid', 0), 0xb702)",
    "the owner of the user namespace above": """
import fcntl
fcntl.ioctl(fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xb701), 0xb702)
""",
}


async def test_namespaces_stay_what_they_are(inside: Inside) -> None:
    """No call makes one, enters one, or shows the one above."""
    await inside.expect(EPERM, "EPERM")


UNKNOWN = {
    "clone3, whose flags no filter sees": """
import ctypes
call('clone3', ctypes.create_string_buffer((0x10000000).to_bytes(8, 'little') + bytes(80)), 88)
"""
}


async def test_the_call_with_hidden_flags_does_not_exist(inside: Inside) -> None:
    """Programs fall back to the one whose flags can be seen."""
    assert set((await inside.outcomes(UNKNOWN)).values()) == {"ENOSYS"}


MAPS = {
    "other ids": "write('/proc/self/uid_map', '0 0 4294967295')",
    "other groups": "write('/proc/self/gid_map', '0 0 4294967295')",
    "the guest's ids": "write('/proc/1/uid_map', '0 0 1')",
    "another clock": "write('/proc/self/timens_offsets', 'monotonic 100000 0')",
}


async def test_the_namespaces_own_files_cannot_be_written(inside: Inside) -> None:
    """Which ids there are was said once, from outside."""
    before = await inside.box.read("/proc/self/uid_map")
    await inside.expect(MAPS, "EPERM", "EACCES")
    assert await inside.box.read("/proc/self/uid_map") == before
