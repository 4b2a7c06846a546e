"""A tracer that changes a call after the filter has seen it, or turns the filter off."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

from proofbox.host.seccomp.policy import machine

TRACED = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
def trace(request, pid, address=0, data=0):
    return call('ptrace', request, pid, address, data)
child = os.fork()
if child == 0:
    trace(0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        call('getppid')
        os._exit(0)
    except OSError as error:
        os._exit(error.errno)
os.waitpid(child, 0)
"""
CHANGED = "a tracer changes the call after the filter has seen it"
ATTEMPTS = {
    CHANGED: TRACED
    + """
trace(24, child); os.waitpid(child, 0)  # SYSCALL: stops at the call
trace(6, child, 15 * 8, NUMBERS['unshare'])  # ORIG_RAX
trace(6, child, 14 * 8, 0x10000000)  # RDI
trace(7, child)
status = os.waitpid(child, 0)[1]
said = errno.errorcode.get(os.waitstatus_to_exitcode(status), status)
""",
    "a tracer turns the filter off": TRACED + "trace(0x4200, child, 0, 1 << 21)",
}


@pytest.mark.skipif(machine() != "x86_64", reason="the registers are this machine's")
async def test_a_tracer_does_not_get_around_the_filter(inside: Inside) -> None:
    """The kernel looks at the call again after it. (gVisor has no filter of ours to get around.)"""
    await inside.expect(ATTEMPTS, "EPERM", gvisor={CHANGED: "0"})
