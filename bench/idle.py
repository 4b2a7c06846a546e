"""Many idle sandboxes: time to make and to end them, memory of each with the kernel's share."""

from __future__ import annotations

import subprocess
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

import proofbox
from bench.measure import Row, with_ratios
from bench.peers import bwrap_argv, run_floor


def available_kib() -> int:
    """MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/meminfo has no MemAvailable")


async def ours(count: int) -> tuple[float, float, float]:
    """Milliseconds to make, to end; KiB each."""
    host = await proofbox.Host.local("native")
    async with host.open_sandbox("host") as box:
        await box.run(["/usr/bin/true"])
    before = available_kib()
    slots = anyio.CapacityLimiter(32)
    boxes: list[AsyncExitStack] = []

    async def make() -> None:
        async with slots:
            stack = AsyncExitStack()
            await stack.enter_async_context(host.open_sandbox("host"))
            boxes.append(stack)

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(make)
    made = (time.perf_counter() - start) * 1e3
    each = (before - available_kib()) / count
    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for stack in boxes:
            tasks.start_soon(stack.aclose)
    return made, (time.perf_counter() - start) * 1e3, each


def bwrap(count: int) -> tuple[float, float, float] | None:
    """The same with bwrap and a program that waits for the end of its input."""
    argv = bwrap_argv(["/usr/bin/sh", "-c", "echo ready; read x"])
    if argv is None:
        return None
    before = available_kib()
    start = time.perf_counter()
    boxes = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    for box in boxes:
        assert box.stdout is not None
        box.stdout.readline()
    made = (time.perf_counter() - start) * 1e3
    each = (before - available_kib()) / count
    start = time.perf_counter()
    for box in boxes:
        box.kill()
    for box in boxes:
        box.wait()
    return made, (time.perf_counter() - start) * 1e3, each


async def measure(quick: bool) -> list[Row]:
    """1,000 of each (quick: 200)."""
    count = 200 if quick else 1000
    found = {"proofbox": await ours(count)}
    kernel = run_floor("idle", str(count))
    found["kernel floor (C)"] = (kernel["created_ms"], kernel["destroyed_ms"], kernel["each_kib"])
    if (peer := bwrap(count)) is not None:
        found["bwrap 0.11"] = peer
    rows: list[Row] = []
    for index, (what, unit) in enumerate([("created", "ms"), ("destroyed", "ms"), ("memory each", "KiB")]):
        rows += with_ratios(
            [Row("idle", f"{count} idle sandboxes, {what}", who, values[index], unit) for who, values in found.items()]
        )
    return rows
