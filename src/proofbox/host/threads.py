"""The threads of other processes as /proc shows them, from outside: state, time run, time waited, what they wait in.

A process that is gone, or that we may not look into, is left out. Nothing here is taken from what the process says of
itself but its name (``comm``), which is for a person to read.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_DEEPEST: Final = 4096
"""Processes of one tree that are followed."""
_LOOKS: Final = 8
"""At one tree. Two are the rule; of one that never stops to fork the last births are missed anyway."""


@dataclass(frozen=True, slots=True)
class Thread:
    """Nanoseconds on a processor and on run queues since its birth. ``state``: the letter of proc(5)."""

    id: int
    state: str
    ran: int
    waited: int


@dataclass(frozen=True, slots=True)
class Process:
    """``cpu``: seconds of all its threads, ended ones included, and of the children that it has waited for.

    ``born``: seconds since the host's boot, as ``time.clock_gettime(time.CLOCK_BOOTTIME)`` counts them.
    """

    pid: int
    parent: int
    comm: str
    born: float
    cpu: float
    threads: tuple[Thread, ...]


def processes(pids: Iterable[int], most: int) -> tuple[list[Process], bool]:
    """Those of them that are there now, up to ``most`` threads; and whether that were all."""
    # All states first, as near to one moment as can be: a program that hands over to a child must not be seen as two.
    stats = [(pid, _read(f"/proc/{pid}/stat")) for pid in pids]
    found: list[Process] = []
    for pid, stat in stats:
        if stat and most > 0:
            found.append(_process(pid, stat, most))
            most -= len(found[-1].threads)
    return found, most > 0


def descendants(root: int) -> list[int]:
    """A process and all that descends from it, as far as it is alive; some of them may have ended meanwhile.

    An orphan goes to a process above its parent. If its parent ends after that one was looked at, and before the parent
    is, it is seen nowhere: so we look until nobody is found who was not found before.
    """
    found = {root: None}
    for _ in range(_LOOKS):
        before = len(found)
        found |= dict.fromkeys(_tree(root))
        if len(found) in (before, 1):
            break
    return list(found)


def _tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                children = _read_pages(f"/proc/{pid}/task/{thread}/children", 65_536)
                found += map(int, children[: children.rfind(b" ") + 1].split())  # a number that was cut off is none
        except OSError:
            continue
        if len(found) > _DEEPEST:
            break
    return found


def below(processes: Sequence[Process], root: int) -> list[Process]:
    """Of these, the root and what descends from it."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found = [process for process in processes if process.pid == root]
    for process in found:
        found += children.get(process.pid, ())
    return found


def inner_pid(pid: int) -> tuple[int, int]:
    """How many PID namespaces deep a process is, and its number in the innermost one. (0, 0) if it is gone."""
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"NSpid:"):
            numbers = line.split()[1:]
            return len(numbers), int(numbers[-1])
    return 0, 0


def moved(pid: int) -> int | None:
    """Bytes that it, and the children that it has waited for, read from and wrote to disks. None if we may not look."""
    counters = dict(line.split(b": ") for line in (_read(f"/proc/{pid}/io") or b"").splitlines())
    if not counters:
        return None
    return int(counters[b"read_bytes"]) + int(counters[b"write_bytes"])


def waits_in(thread: Thread) -> tuple[str, str]:
    """What it is blocked in: a word, and the kernel's own words for a person."""
    words = {"R": "running", "T": "stopped", "t": "stopped", "Z": "zombie", "X": "zombie", "I": "idle"}
    if thread.state in words:
        return words[thread.state], ""
    call = (_read(f"/proc/{thread.id}/syscall") or b"").split(b" ")[0].decode().strip()
    place = (_read(f"/proc/{thread.id}/wchan") or b"").decode("ascii", "replace").strip("\0")
    if call == "running":  # it has got on since it was looked at
        return "running", ""
    if thread.state == "D":
        return "disk" if not is_own_wait(place) else "wait", f"syscall {call or '?'}, {place or '?'}"
    return _WORDS.get(call) or _by_place(place), f"syscall {call or '?'}, {place or '?'}"


def uninterruptible(thread: Thread) -> Literal["", "disk", "stuck"]:
    """What it sleeps on uninterruptibly, as the kernel names the place; "" if it does not, or by its own making."""
    if thread.state != "D":
        return ""
    place = (_read(f"/proc/{thread.id}/wchan") or b"").decode("ascii", "replace")
    if is_own_wait(place):
        return ""
    return "disk" if any(word in place for word in _DISK) else "stuck"


def is_own_wait(place: str) -> bool:
    """Uninterruptible sleep that any program can bring about by itself: the parent of a vfork waits for its child."""
    return any(word in place for word in ("vfork", "kernel_clone", "do_fork", "userfault"))


def _process(pid: int, stat: bytes, most: int) -> Process:
    # The name may hold anything, brackets and spaces too; it ends at the last bracket.
    head, _, rest = stat.rpartition(b")")
    fields = rest.split()
    state, parent = fields[0].decode(), int(fields[1])
    cpu = sum(map(int, fields[11:15])) / _TICKS
    comm = head.partition(b"(")[2].decode("utf-8", "replace")
    if int(fields[17]) > 1:
        threads = _threads(pid, most)
    else:
        threads = tuple(thread for thread in (_thread(pid, pid, state),) if thread)
    return Process(pid, parent, comm, int(fields[19]) / _TICKS, cpu, threads)


def _threads(pid: int, most: int) -> tuple[Thread, ...]:
    try:
        names = os.listdir(f"/proc/{pid}/task")[:most]
    except OSError:
        return ()
    found = []
    for name in names:
        stat = _read(f"/proc/{pid}/task/{name}/stat")
        if stat:
            thread = _thread(pid, int(name), stat.rpartition(b") ")[2][:1].decode())
            if thread is not None:
                found.append(thread)
    return tuple(found)


def _thread(pid: int, ident: int, state: str) -> Thread | None:
    words = (_read(f"/proc/{pid}/task/{ident}/schedstat") or b"").split()
    if len(words) != 3:
        return None if not os.path.exists(f"/proc/{pid}/task/{ident}") else Thread(ident, state, -1, -1)
    return Thread(ident, state, int(words[0]), int(words[1]))


def _read(path: str, most: int = 4096) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, most)
    except OSError:  # gone since it was opened, or not ours to see
        return None
    finally:
        os.close(fd)


def _read_pages(path: str, most: int) -> bytes:
    """What may be long: the kernel gives it a page at a time. Empty where it is not there."""
    text = b""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        while len(text) < most and (more := file.read(most - len(text))):
            text += more
    return text


_GROUPS: Final[dict[str, dict[str, str]]] = {
    "x86_64": {
        "read": "0 17 19 45 47 299",
        "write": "1 18 20 44 46 307",
        "poll": "7 23 232 270 271 281 441",
        "wait": "61 247",
        "futex": "202",
        "sleep": "35 230",
        "signal": "34 128 130",
        "open": "2 257 437",
        "accept": "43 288",
        "connect": "42",
        "lock": "72 73",
        "ipc": "65 69 70 220 242 243",
    },
    "aarch64": {
        "read": "63 65 67 207 212 243",
        "write": "64 66 68 206 211 269",
        "poll": "22 72 73 441",
        "wait": "95 260",
        "futex": "98",
        "sleep": "101 115",
        "signal": "133 137",
        "open": "56 437",
        "accept": "202 242",
        "connect": "203",
        "lock": "25 32",
        "ipc": "182 183 188 189 192 193",
    },
}
_WORDS: Final = {
    number: word for word, numbers in _GROUPS.get(platform.machine(), {}).items() for number in numbers.split()
}
"""What a program is blocked in, by system call."""


_DISK: Final = (
    *("io_schedule", "folio_", "page_bit", "filemap", "wait_on_bit", "buffer", "blk", "bio", "rq_qos", "wbt", "iomap"),
    *("jbd2", "ext4", "xfs", "btrfs", "nfs", "writeback", "balance_dirty", "sync_inode", "swap", "dax", "direct_IO"),
)
"""Parts of the names of places in the kernel where one waits for a file system or its device."""


def _by_place(place: str) -> str:
    """By the kernel's own function, where the number of the call is not known (32-bit programs, restarted calls)."""
    words = ("pipe_read", "read"), ("nanosleep", "sleep"), ("futex", "futex"), ("poll", "poll"), ("do_wait", "wait")
    return next((word for part, word in words if part in place), "blocked")
