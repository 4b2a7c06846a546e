"""What a sandbox's writable layer holds, read from outside: its file system counts, nothing inside is asked."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from proofbox.model.outcome import Usage


def with_space(usage: Usage, layer: str | int | None, ours: int = 0) -> Usage:
    """``usage`` with what is written there: the root directory of a process (``/proc/PID/root``), or a descriptor.

    ``ours``: pages that are ours, and not the sandbox's.

    As it was where the process is gone, or is none that we may look into.
    """
    if layer is None:
        return usage
    try:
        found = os.statvfs(layer)
    except OSError:
        return usage
    full: Literal["disk", "inodes"] | None = None
    if found.f_blocks and not found.f_bavail:
        full = "disk"
    elif found.f_files and not found.f_ffree:
        full = "inodes"
    disk = max(0, found.f_blocks - found.f_bfree - ours) * found.f_frsize
    return msgspec.structs.replace(usage, disk=disk, full=full)
