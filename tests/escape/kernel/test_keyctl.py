"""Keys of the kernel's: those of the session in which the host started everything, and a history of holes
(CVE-2016-0728).
"""

from __future__ import annotations

from tests.escape.attempts import CLOSED, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    "the session's keys": "call('keyctl', 0, -3, 0)",
    "a session of its own": "call('keyctl', 1, b'mine')",
    "what they are": "import ctypes; call('keyctl', 11, -3, ctypes.create_string_buffer(4096), 4096)",
    "the keys of its user": "call('keyctl', 0, -4, 1)",
    "a key": "call('add_key', b'user', b'mine', b'x', 1, -4)",
    "a key that somebody is asked for": "call('request_key', b'user', b'mine', b'x', -4)",
    **reading("/proc/keys"),
}
GVISOR = dict.fromkeys(("the session's keys", "a session of its own"), "done")


async def test_there_are_no_keys(inside: Inside) -> None:
    """None is read, made, or asked for. (gVisor has sessions, which have no keys.)"""
    await inside.expect(ATTEMPTS, "empty", *CLOSED, gvisor=GVISOR)
