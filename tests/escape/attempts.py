"""Text that several attacks say to a sandbox. What runs around it is ``inside.py``."""

from __future__ import annotations

from collections.abc import Mapping

CLOSED = ("EROFS", "EACCES", "EPERM", "ENOENT", "ENOTDIR")
"""How files of the kernel refuse."""
WAYS = {
    "written": "write(PATH, 'x')",
    "made writable": "os.chmod(PATH, 0o666)",
    "cut": "os.truncate(PATH, 0)",
    "renamed": "os.rename(PATH, PATH + '2')",
    "opened again by its descriptor": "fd = os.open(PATH, os.O_PATH); os.open(f'/proc/self/fd/{fd}', os.O_WRONLY)",
}
ADDRESSES = "import ctypes; b = ctypes.create_string_buffer(8); v = (ctypes.c_ulong * 2)(ctypes.addressof(b), 8)\n"
"""One piece of memory, as calls take it."""
NET = """
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
"""
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
"""Runs instructions of the processor."""
PTY = "import fcntl, struct; master, slave = os.openpty()\n"
EVERY = """
said = 'nobody is there'
for pid in others():
    try:
        {}
        said = f'worked on {{pid}}'
        break
    except (PermissionError, ProcessLookupError, FileNotFoundError) as error:
        said = errno.errorcode[error.errno]
"""


def changing(*paths: str) -> dict[str, str]:
    """Each of these files in every way in which one is written."""
    return {f"{path} {how}": "PATH = " + repr(path) + "\n" + way for path in paths for how, way in WAYS.items()}


def reading(*paths: str) -> dict[str, str]:
    """What each of these files says."""
    return {path: f"said = read({path!r}).strip('\\0') or 'empty'" for path in paths}


def opening(*names: str) -> dict[str, str]:
    """Each of these devices, to read and write."""
    return {f"/dev/{name}": f"os.open('/dev/{name}', os.O_RDWR)" for name in names}


def on_the_hosts(attempts: Mapping[str, str]) -> dict[str, str]:
    """With ``pid``, the number that a process of the host has there."""
    return {name: "pid = GIVEN['pid']\n" + attempt for name, attempt in attempts.items()}


def of_the_client(attempts: Mapping[str, str], client: int) -> dict[str, str]:
    """Without those on its number where it is process 1, as in a container: inside, that is the guest's."""
    return {name: attempt for name, attempt in attempts.items() if client > 1 or 'GIVEN["client"]' not in attempt}


def on_the_guest(attempts: Mapping[str, str]) -> dict[str, str]:
    """With ``pid``: on each process of the sandbox but the attacker's own, until it works on one."""
    indented = {name: attempt.replace("\n", "\n        ") for name, attempt in attempts.items()}
    return {name: EVERY.format(attempt) for name, attempt in indented.items()}


def opening_socket(family: int, kind: int, protocol: int) -> str:
    """A socket of that kind."""
    return f"import socket; socket.socket({family}, {kind}, {protocol})"
