"""Crashing on purpose: the handler of core dumps is a program of the host's, and the crashed memory is a stranger's
(CVE-2025-4598, CVE-2025-5054).
"""

from __future__ import annotations

from tests.escape.conftest import Inside

CRASH = """
child = os.fork()
if child == 0:
    os.kill(os.getpid(), 11)
said = os.WCOREDUMP(os.waitpid(child, 0)[1]), resource.getrlimit(resource.RLIMIT_CORE)
"""
ATTEMPTS = {
    "as it is": "import resource" + CRASH,
    "with a limit of 0": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))" + CRASH,
    "without a limit": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))" + CRASH,
    "with a limit that another call sets": """
import ctypes, resource
call('prlimit64', 0, 4, (ctypes.c_ulong * 2)(0, 0), 0)
"""
    + CRASH,
    "with a limit that the oldest call sets": """
import ctypes, resource
call('setrlimit', 4, (ctypes.c_ulong * 2)(0, 0))
"""
    + CRASH,
    "with a limit behind a pointer whose lower half is zero": """
import ctypes, mmap, resource
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
address = libc.mmap(1 << 40, 4096, 3, 0x32, -1, 0)
assert address == 1 << 40
call('prlimit64', 0, 4, ctypes.c_void_p(address), 0)
"""
    + CRASH,
    "of another process": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))" + CRASH,
}
GVISOR = {
    **dict.fromkeys(ATTEMPTS, "(False, (0, 0))"),
    "without a limit": "ValueError('not allowed to raise maximum limit')",
}
"""Its limits are its own, and it dumps nothing."""


async def test_no_handler_of_the_host_is_started(inside: Inside) -> None:
    """The limit on core dumps is 1 and stays 1: too small for a file, and the kernel's sign to start no handler."""
    await inside.expect(ATTEMPTS, "(False, (1, 1))", gvisor=GVISOR)
