"""Processes of the host, by the numbers that they have there."""

from __future__ import annotations

from tests.escape.conftest import Inside

TARGET = "pid = GIVEN['pid']\n"
ADDRESSES = "import ctypes; b = ctypes.create_string_buffer(8); v = (ctypes.c_ulong * 2)(ctypes.addressof(b), 8)\n"
SIGNAL = "import ctypes; info = ctypes.create_string_buffer(bytes(8) + b'\\xff' * 4 + bytes(116))\n"
ABSENT = {
    name: TARGET + attempt
    for name, attempt in {
        "kill it": "os.kill(pid, 9)",
        "kill its session": "os.killpg(pid, 9)",
        "queue a signal": SIGNAL + "call('rt_sigqueueinfo', pid, 9, info)",
        "hold it": "call('pidfd_open', pid, 0)",
        "trace it": "call('ptrace', 0x4206, pid, 0, 0)",
        "read its memory": ADDRESSES + "call('process_vm_readv', pid, v, 1, v, 1, 0)",
        "write its memory": ADDRESSES + "call('process_vm_writev', pid, v, 1, v, 1, 0)",
        "open its memory": "os.open(f'/proc/{pid}/mem', os.O_RDWR)",
        "its environment": "read(f'/proc/{pid}/environ')",
        "its root": "os.listdir(f'/proc/{pid}/root/')",
        "its namespaces": "os.open(f'/proc/{pid}/ns/mnt', os.O_RDONLY)",
        "its limits": "import resource; resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))",
        "its processors": "os.sched_setaffinity(pid, {0})",
        "its priority": "os.setpriority(os.PRIO_PROCESS, pid, 19)",
        "its schedule": "os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))",
        "its place on the disk": "call('ioprio_set', 1, pid, 3 << 13)",
        "have it told when a file changes": """
import fcntl
near, far = os.pipe()
fcntl.fcntl(near, fcntl.F_SETOWN, pid)
""",
    }.items()
}


async def test_a_process_of_the_host_does_not_exist(inside: Inside) -> None:
    """Its number means nothing inside, or somebody inside."""
    await inside.expect(ABSENT, "ESRCH", "ENOENT")


ALL = {
    "whoever can be signalled": """
import signal
signal.signal(signal.SIGURG, signal.SIG_IGN)
os.kill(-1, signal.SIGURG)
""",
    "whoever has a user's name": "[os.setpriority(os.PRIO_USER, user, 19) for user in (os.getuid(), 0, 65534)]",
    "whoever is in a group of processes": "os.setpriority(os.PRIO_PGRP, 0, 19)",
}


async def test_everybody_means_everybody_inside(inside: Inside) -> None:
    """Whatever a call that names many reaches, the witness outside is as nice and as alive as before."""
    await inside.expect(ALL, "done", "ESRCH", "EPERM", "EACCES")
