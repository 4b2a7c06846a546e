"""A filter of the attacker's own above ours, which allows everything, or leaves decisions to its maker."""

from __future__ import annotations

from tests.escape.conftest import Inside

FILTER = """
import ctypes
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]
"""
ATTEMPTS = {
    "a filter that allows everything": FILTER
    + """code = ctypes.create_string_buffer(bytes.fromhex('060000000000ff7f'))
call('seccomp', 1, 0, ctypes.byref(Program(1, ctypes.addressof(code))))
call('unshare', 0x10000000)
""",
    "the old mode, which has no filter": "call('prctl', 22, 1, 0, 0, 0)",
}
GVISOR = {"a filter that allows everything": "done"}


async def test_the_strictest_filter_decides(inside: Inside) -> None:
    """Another one takes away and never gives, and there is no way back to the old mode."""
    await inside.expect(ATTEMPTS, "EPERM", "EINVAL", gvisor=GVISOR)
