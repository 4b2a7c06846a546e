"""Machines that go on from one saved state: whoever has one could know what another one is going to choose."""

from __future__ import annotations

import json

import pytest
from tests.escape.conftest import AT_MACHINES, Inside

from proofbox.sandbox.api import Sandbox

pytestmark = AT_MACHINES

LOOK = """
import ctypes, json, os, random
NAME = '/proc/sys/kernel/random/uuid'
libc = ctypes.CDLL(None)
libc.getauxval.restype = ctypes.c_ulong
libc.sbrk.restype = ctypes.c_void_p
print(json.dumps({
    'random numbers': os.getrandom(16).hex(),
    'random numbers, as a file': open('/dev/urandom', 'rb').read(16).hex(),
    'random numbers, the old file': open('/dev/random', 'rb').read(16).hex(),
    **({'a name by the kernel': open(NAME).read()} if os.path.exists(NAME) else {}),
    'boot id': open('/proc/sys/kernel/random/boot_id').read(),
    'machine id': open('/etc/machine-id').read(),
    'what programs guard their stacks and pointers with': ctypes.string_at(libc.getauxval(25), 16).hex(),
    'where a library lies': ctypes.cast(libc.getrandom, ctypes.c_void_p).value,
    'where the heap lies': libc.sbrk(0),
    'where the stack lies': open('/proc/self/stat').read().split()[27],
    'hashes of text': hash('text'),
    'a choice': random.random(),
}))
"""


async def told(box: Sandbox, user: str | None) -> dict[str, str]:
    """By its first program, before anything has stirred its random numbers."""
    result = await box.run(["python3", "-S", "-c", LOOK], user=user)
    found: dict[str, str] = json.loads(result.stdout)
    return found


async def test_twins_choose_differently(inside: Inside) -> None:
    """Nothing that has to be a secret, or one's own, is the same in two of them."""
    if inside.user is not None:
        pytest.skip("who runs inside makes no difference")
    async with inside.open_box() as one, inside.open_box() as other:
        left, right = await told(one, inside.user), await told(other, inside.user)
    assert len(left) == 12
    assert {name: value for name, value in left.items() if right[name] == value} == {}
