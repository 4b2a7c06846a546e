"""One command in a live sandbox, against the same program outside."""

from __future__ import annotations

import time

import proofbox
from bench.measure import Row, median, timed, with_ratios
from bench.peers import TRUE, run_floor, spawn


async def measure(quick: bool) -> list[Row]:
    """``true`` inside, and posix_spawn of it from the same Python, in turn; the C program for reference."""
    count = 200 if quick else 1000
    host = await proofbox.Host.local("native")
    inside: list[float] = []
    outside: list[float] = []
    async with host.open_sandbox("host") as box:
        for _ in range(20):
            await box.run([TRUE])
        for _ in range(count):
            start = time.perf_counter()
            await box.run([TRUE])
            inside.append((time.perf_counter() - start) * 1e3)
            outside.append(timed(lambda: spawn([TRUE])))
    what = "run true, result in hand"
    return with_ratios(
        [
            Row("command", what, "proofbox", median(inside), "ms"),
            Row("command", what, "posix_spawn (Python)", median(outside), "ms"),
            Row("command", what, "posix_spawn (C)", run_floor("spawn", str(count))["median_ms"], "ms"),
        ]
    )
