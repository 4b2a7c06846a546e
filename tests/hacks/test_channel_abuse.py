"""Attack: write into the channel oneself: early answers, forged verdicts, floods, nonsense."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

# Finds the channel: the one socket among the descriptors.
FIND = """
import os, stat
def channel():
    for fd in range(3, 1024):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass
def frame(kind, payload=b''):
    return (len(payload) + 1).to_bytes(4, 'little') + kind + payload
def send(data):
    fd = channel()
    while data:
        data = data[os.write(fd, data):]
"""
ABUSES = {
    "verdict for the grader": "send(frame(b'V', b't\\2\\0\\0\\0s\\6\\0\\0\\0passeds\\0\\0\\0\\0'))",
    "gone": "send(frame(b'G'))",
    "second hello": "send(frame(b'H') * 3)",
    "empty frame": "send((0).to_bytes(4, 'little'))",
    "oversize frame": "send((1 << 31).to_bytes(4, 'little') + b'A')",
    "cut frame": "send((1000).to_bytes(4, 'little') + b'A' + b'x' * 10); os._exit(0)",
    "noise": "send(os.urandom(100000))",
    "zeros": "send(bytes(100000))",
    "many answers": "send(frame(b'A', b'N') * 100000)",
    "answer that is no value": "send(frame(b'A', b'\\xff' * 50))",
    "live call": "send(frame(b'L', b'N'))",
    "test": "send(frame(b'T', b'N'))",
}


@pytest.mark.parametrize("abuse", ABUSES)
@pytest.mark.parametrize("when", ["at import", "in the call"])
async def test_what_it_writes_itself_does_not_pass(
    abuse: str, when: str, judge: Callable[..., Awaitable[Verdict]]
) -> None:
    """The most that forged frames can do is to answer a call wrongly."""
    code = ABUSES[abuse]
    before = FIND + (code if when == "at import" else "")
    verdict = await judge((f"exec({code!r})\n" if when == "in the call" else "") + "return None", before=before)
    assert verdict.ending in ("failed", "limit")


async def test_a_flood_does_not_fill_anybodys_memory(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A stream of frames without end is cut at the first that nobody asked for."""
    verdict = await judge("while True:\n    send(frame(b'A', b'N'))", before=FIND)
    assert verdict.ending == "failed"


async def test_one_endless_frame_ends_at_the_time_limit(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A frame that never becomes whole is no answer."""
    verdict = await judge("send((8 << 20).to_bytes(4, 'little') + b'A')\nimport time\ntime.sleep(600)", before=FIND)
    assert verdict.ending == "limit"


async def test_a_dribble_counts_against_the_time_limit(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """One byte after the other is still no answer in time."""
    body = "import time\nsend((1000).to_bytes(4, 'little') + b'A')\nwhile True:\n    send(b'x'); time.sleep(0.01)"
    assert (await judge(body, before=FIND)).ending == "limit"
