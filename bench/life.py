"""One whole life: create, run ``true``, destroy."""

from __future__ import annotations

import concurrent.futures
import functools
import time
from collections.abc import Callable

import anyio

import proofbox
from bench.measure import Row, interleave, median, with_ratios
from bench.peers import TRUE, bwrap_argv, crun, podman, run_floor, spawn


async def one_life(host: proofbox.Host) -> None:
    """From Python: the sandbox, one command, its end confirmed."""
    async with host.open_sandbox("host") as box:
        result = await box.run([TRUE])
        if not result.ok:
            raise RuntimeError(f"true ended with {result.outcome}")


async def ours_latency(host: proofbox.Host, count: int) -> list[float]:
    """Milliseconds of each of ``count`` lives, one after another."""
    took = []
    for _ in range(count):
        start = time.perf_counter()
        await one_life(host)
        took.append((time.perf_counter() - start) * 1e3)
    return took


async def ours_rate(host: proofbox.Host, count: int, at_once: int) -> float:
    """Lives in a second, ``at_once`` in flight."""
    slots = anyio.CapacityLimiter(at_once)

    async def life() -> None:
        async with slots:
            await one_life(host)

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(life)
    return count / (time.perf_counter() - start)


def rate_of(call: Callable[[], object], count: int, workers: int = 4) -> float:
    """Calls a second from ``workers`` threads."""
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(call) for _ in range(count)]:
            done.result()
    return count / (time.perf_counter() - start)


async def measure(quick: bool) -> list[Row]:
    """Latency one at a time (rounds interleaved) and lives a second, ours against floor, bwrap and crun."""
    rounds, each = (3, 20) if quick else (8, 50)
    host = await proofbox.Host.local("native")
    await ours_latency(host, 10)
    rows: list[Row] = []
    peers: dict[str, Callable[[], object]] = {}
    if (argv := bwrap_argv([TRUE])) is not None:
        peers["bwrap 0.11"] = functools.partial(spawn, argv)
    took: dict[str, list[float]] = {"proofbox": [], "kernel floor (C)": []}
    for _ in range(rounds):
        took["proofbox"] += await ours_latency(host, each)
        took["kernel floor (C)"].append(run_floor("life", str(each), "1")["median_ms"])
        for name, times in interleave(peers, each // 2).items():
            took.setdefault(name, []).extend(times)
        for name, engine, share in (("crun", crun, each // 5), ("podman", podman, 2)):
            if found := engine(share):
                took.setdefault(name, []).extend(found)
    what = "create + true + destroy, one at a time"
    rows += with_ratios([Row("life", what, name, median(times), "ms") for name, times in took.items()])
    count = 300 if quick else 1500
    what = "lives a second, 2 cores"
    rates = [
        Row("life", what, "proofbox", await ours_rate(host, count, 6), "1/s"),
        Row("life", what, "kernel floor (C)", run_floor("life", str(count), "2")["per_second"], "1/s"),
    ]
    rates += [Row("life", what, name, rate_of(call, count // 5), "1/s") for name, call in peers.items()]
    return rows + with_ratios(rates, inverse=True)
