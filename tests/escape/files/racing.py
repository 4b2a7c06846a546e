"""What the host does to a path while somebody inside swaps what lies there."""

from __future__ import annotations

from proofbox.errors import FileFailed
from proofbox.sandbox.api import Sandbox

ROUNDS = 30


async def read_and_written(box: Sandbox, path: str, text: str, user: str | None = None) -> set[bytes]:
    """What was read, of all times that it could be; the file is written as often."""
    read: set[bytes] = set()
    for _ in range(ROUNDS):
        for operation in (box.read(path, user=user), box.write(path, text, user=user, parents=False)):
            try:
                found = await operation
            except FileFailed:
                continue
            if isinstance(found, bytes):
                read.add(found)
    return read
