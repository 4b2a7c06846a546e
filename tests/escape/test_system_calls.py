"""Calls that are refused whoever makes them, and what is tried against the filter itself."""

from __future__ import annotations

import errno

import pytest
from tests.escape.conftest import Inside

from proofbox.host.seccomp.policy import Rule, machine, numbers, policy

DENIED = {
    name: errno.errorcode[verdict]
    for name, verdict in sorted(policy().verdicts.items())
    if verdict and not isinstance(verdict, Rule) and name in numbers(machine())
}
WITHOUT_SENSE = {name: f"call({name!r}, -1, -1, -1, -1, -1)" for name in DENIED}


async def test_denied_calls_fail_with_their_error(inside: Inside) -> None:
    """Modules, kexec, reboot, bpf, perf, userfaultfd, keys, io_uring, ...: with arguments that mean nothing."""
    assert await inside.outcomes(WITHOUT_SENSE) == DENIED


UNNAMED = {
    "numbers": """
known = set(GIVEN['known'])
found = {}
for number in [*range(0, 700), *range(1000, 1010), 1 << 20]:
    # 335 and 336 belong to probes that the host set: the kernel lets them by all filters, and ends who calls unasked.
    if number not in known and number not in (335, 336):
        try:
            found[number] = call(number, -1, -1, -1, -1, -1, -1)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                found[number] = error.errno
said = found
"""
}


async def test_a_call_that_nobody_named_does_not_exist(inside: Inside) -> None:
    """What a newer kernel adds is refused before anybody has looked at it."""
    known = [number for name, number in numbers(machine()).items() if name in policy().verdicts]
    assert (await inside.outcomes(UNNAMED, known=known))["numbers"] == "{}"


CODE = """
import ctypes, mmap
def run(code):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = function()
    if -4096 < result < 0:
        raise OSError(-result, '')
    return result
"""
OTHER_ABIS = {
    # mov eax, 20; int 0x80; movsxd rax, eax; ret
    "the processor's old gate, getpid": CODE + "run(bytes.fromhex('b814000000cd804863c0c3'))",
    # the same with 21, mount
    "the processor's old gate, mount": CODE + "run(bytes.fromhex('b815000000cd804863c0c3'))",
    "numbers of x32, getpid": "call(0x40000000 + 39)",
    "numbers of x32, mount": "call(0x40000000 + 165, b'none', b'/mnt', b'tmpfs', 0, 0)",
    "numbers of x32, ptrace": "call(0x40000000 + 521, 16, 1, 0, 0)",
}


@pytest.mark.skipif(machine() != "x86_64", reason="only this machine has two other ABIs")
async def test_the_machines_other_abis_are_closed(inside: Inside) -> None:
    """Their numbers mean other calls: a filter that does not look would let them by."""
    await inside.expect(OTHER_ABIS, "ENOSYS", "signal 11", "signal 31")


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
FILTER = {
    "a tracer changes the call after the filter has seen it": TRACED
    + """
trace(24, child); os.waitpid(child, 0)  # SYSCALL: stops at the call
trace(6, child, 15 * 8, GIVEN['numbers']['unshare'])  # ORIG_RAX
trace(6, child, 14 * 8, 0x10000000)  # RDI
trace(7, child)
status = os.waitpid(child, 0)[1]
said = errno.errorcode.get(os.waitstatus_to_exitcode(status), status)
""",
    "a tracer turns the filter off": TRACED + "trace(0x4200, child, 0, 1 << 21)",
    "a filter that allows everything": """
import ctypes
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]
code = ctypes.create_string_buffer(bytes.fromhex('060000000000ff7f'))
call('seccomp', 1, 0, ctypes.byref(Program(1, ctypes.addressof(code))))
call('unshare', 0x10000000)
""",
}


@pytest.mark.skipif(machine() != "x86_64", reason="the registers are this machine's")
async def test_the_filter_cannot_be_got_around(inside: Inside) -> None:
    """Neither by changing a call once it was looked at, nor by another filter above it."""
    await inside.expect(FILTER, "EPERM")
