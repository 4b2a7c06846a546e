"""The two counters of a control group that are read around every single command, from descriptors that stay open."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from proofbox.errors import Busy
from proofbox.host.cgroup import Plan


@dataclass(slots=True, eq=False)
class EventCounters:
    """Memory kills and refused forks of one group, since it was made.

    The first reading opens and closes its two files: a sandbox that runs one command and goes holds no descriptor
    more. From the second on they stay open, and one reading is two system calls. ``close`` belongs to the owner.
    """

    plan: Plan
    _again: bool = False
    _closed: bool = False
    _files: list[int] = field(default_factory=list)

    def read(self) -> tuple[int | None, int | None]:
        """(memory kills, refused forks), None where there is no such counter, or the group is gone. Raises ``Busy``
        where this process has no descriptor left.
        """
        if self._files:
            return _counted(self._files[0], b"oom_kill"), _counted(self._files[1], b"max")
        groups = self.plan.by_controller
        files: list[int] = []
        try:
            name = "memory.events" if self.plan.version == 2 else "memory.oom_control"
            files.append(_opened(groups.get("memory"), name))
            files.append(_opened(groups.get("pids"), "pids.events"))
            return _counted(files[0], b"oom_kill"), _counted(files[1], b"max")
        finally:
            if self._again and not self._closed and len(files) == 2:
                self._files = files
            else:
                _close(files)
            self._again = True

    def close(self) -> None:
        """Closes what is held; nothing is held any more after it. Idempotent."""
        self._closed = True
        _close(self._files)
        self._files = []


def _close(files: list[int]) -> None:
    for fd in files:
        if fd >= 0:
            os.close(fd)


def _opened(directory: str | None, name: str) -> int:
    if directory is None:
        return -1
    try:
        return os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    except OSError as error:  # this process may open no more
        raise Busy(f"a sandbox's counter {directory}/{name}: {error.strerror} (ulimit -n)") from error


def _counted(fd: int, key: bytes) -> int | None:
    if fd < 0:
        return None
    try:
        text = b"\n" + os.pread(fd, 512, 0)
    except OSError as error:
        if error.errno == errno.ENODEV:  # removed since it was opened
            return None
        raise
    found = text.find(b"\n" + key + b" ")
    return None if found < 0 else int(text[found + len(key) + 2 :].partition(b"\n")[0])
