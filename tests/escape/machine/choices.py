"""What a sandbox chooses that has to be a secret, or its own."""

from __future__ import annotations

import json

from proofbox.sandbox.api import Sandbox

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


async def told(box: Sandbox) -> dict[str, str]:
    """By its first program, before anything has stirred its random numbers."""
    result = await box.run(["python3", "-S", "-c", LOOK])
    found: dict[str, str] = json.loads(result.stdout)
    return found
