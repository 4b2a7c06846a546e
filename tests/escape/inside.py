"""What attacks are made with. Its text runs inside the sandbox: each line that it reads has attempts, and is answered.

An attempt is a piece of Python. It is run in a child process of its own. What is told of it is ``said``, if the attempt
sets that; else "done", or the name of the error that stopped it.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Any

NUMBERS: dict[str, int] = json.loads(sys.argv[1])
GIVEN: dict[str, Any] = {}
"""What the attackers are told."""


def call(name: str | int, *args: Any) -> int:
    """Makes a system call, by its name or number; raises ``OSError`` where it fails."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = NUMBERS.get(name) if isinstance(name, str) else name
    if number is None:
        raise OSError(errno.ENOSYS, f"this machine has no call {name}")
    given = (ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args)
    result: int = libc.syscall(ctypes.c_long(number), *given)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: str) -> str:
    """A whole file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def write(path: str, text: str) -> None:
    """Writes into a file that is there."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text.encode())
    os.close(fd)


def others() -> list[int]:
    """The processes of the sandbox that are not ours: the guest, and what belongs to it."""
    mine = {os.getpid(), os.getppid()}
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in mine]


def _told(code: str) -> str:
    space = dict(globals())
    try:
        exec(code, space)
        return str(space.get("said", "done"))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except Exception as error:  # noqa: BLE001 - an attempt that is written wrong must not look refused
        return repr(error)


def _run(code: str) -> str:
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(near)
        os.write(far, _told(code).encode())
        os._exit(0)
    os.close(far)
    told = b""
    while part := os.read(near, 65536):
        told += part
    os.close(near)
    status = os.waitpid(child, 0)[1]
    return told.decode() or f"signal {os.WTERMSIG(status)}"


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        GIVEN = asked["given"]
        print(json.dumps({name: _run(code) for name, code in asked["attempts"].items()}), flush=True)
