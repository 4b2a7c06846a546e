"""Attack, or accident: take all memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    "way",
    [
        "hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 20))",
        "import os\nif os.fork() == 0:\n    hoard = [bytearray(1 << 20) for _ in range(4096)]\nos.wait()\n1 / 0",
        "with open('/dev/shm/x', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))",
    ],
    ids=["heap", "heap of a child", "shm"],
)
async def test_the_kernels_counter_says_it_was_memory(
    way: str, judge: Callable[..., Awaitable[Verdict]], enforces: Callable[[str], None]
) -> None:
    """A limit, not a failure, and not the host's: also where it was a child that was killed."""
    enforces("memory")
    verdict = await judge(way, timeout=20.0)
    if "/dev/shm" in way and verdict.ending == "failed":
        assert "OSError" in verdict.reason  # the file system's own limit came first
        return
    assert verdict.ending == "limit"
    assert verdict.limit is not None
    assert verdict.limit.kind == "memory"
