"""Claims from a warm pool against sandboxes made when they are asked for; and a thousand creations against podman's."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence

import anyio

import proofbox
from bench.life import one_life, ours_rate
from bench.measure import Row, median, with_ratios
from bench.peers import TRUE, podman

PAUSE = 0.03
"""Seconds without a command before each that is timed: caches and processors are then as for who comes now and then."""
WORKERS = 4
"""Podman's containers that are made at one time, on two cores."""


async def claims(count: int) -> tuple[dict[str, list[float]], proofbox.PoolStats]:
    """Milliseconds until the first command's result is in hand, warm and cold in turn; and of a command after it, at
    once and after a pause as long as a member stood idle before its claim.
    """
    took: dict[str, list[float]] = {"warm": [], "cold": [], "second": [], "rested": []}
    host = await proofbox.Host.local("native")
    async with host.pool("host", size=(4, 8)) as pool:
        for _ in range(count):
            await pool.ready(10)
            await anyio.sleep(PAUSE)
            start = time.perf_counter()
            async with pool.claim() as box:
                await box.run([TRUE])
                took["warm"].append((time.perf_counter() - start) * 1e3)
                start = time.perf_counter()
                await box.run([TRUE])
                took["second"].append((time.perf_counter() - start) * 1e3)
                await pool.ready(10)
                await anyio.sleep(PAUSE)
                start = time.perf_counter()
                await box.run([TRUE])
                took["rested"].append((time.perf_counter() - start) * 1e3)
            await anyio.sleep(PAUSE)
            start = time.perf_counter()
            async with host.open_sandbox("host") as box:
                await box.run([TRUE])
                took["cold"].append((time.perf_counter() - start) * 1e3)
        return took, pool.stats()


async def burst(pool: proofbox.Pool, count: int) -> float:
    """Seconds for so many claims of one command each, six at a time, while the pool is refilled."""
    slots = anyio.CapacityLimiter(6)

    async def claim() -> None:
        async with slots, pool.claim() as box:
            await box.run([TRUE])

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(claim)
    return time.perf_counter() - start


async def thousand(rounds: int, each: int) -> list[Row]:
    """Many creations, through a pool and without one in turn, and some of podman's."""
    host = await proofbox.Host.local("native")
    warm = cold = 0.0
    hits = misses = 0
    for _ in range(rounds):
        await one_life(host)  # what is looked up once in a while is looked up now
        cold += each / await ours_rate(host, each, 6)
        async with host.pool("host", size=(4, 16)) as pool:
            await pool.ready(10)
            warm += await burst(pool, each)
            stats = pool.stats()
            hits, misses = hits + stats.hits, misses + stats.misses
    await host.aclose()
    what = f"{rounds * each:,} sandboxes with one true each"
    rows = [
        Row("pool", what, "proofbox", cold, "s"),
        Row("pool", what, "proofbox, warm", warm, "s", note=f"{100 * hits / (hits + misses):.0f} % hits"),
    ]
    some = 2 if rounds * each < 1000 else 6
    if (rate := podman_rate(some)) is not None:
        note = f"extrapolated from {some * WORKERS}"
        rows.append(Row("pool", what, "podman run", rounds * each / rate, "s", note=note))
    return with_ratios(rows)


def podman_rate(each: int) -> float | None:
    """``podman run`` a second, ``WORKERS`` at a time; None without podman."""
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as workers:
        made = sum(len(times) for times in workers.map(podman, [each] * WORKERS))
    return made / (time.perf_counter() - start) if made else None


def high(values: Sequence[float], share: float = 0.95) -> str:
    """For the note of a row."""
    return f"p95 {sorted(values)[int(share * (len(values) - 1))]:.2f}" if values else ""


async def measure(quick: bool) -> list[Row]:
    """Latency of claims; claims a second; a thousand creations, of which podman makes some."""
    took, stats = await claims(30 if quick else 300)
    what = "sandbox + true, result in hand"
    rows = with_ratios(
        [
            Row("pool", what, "proofbox, warm", median(took["warm"]), "ms", note=high(took["warm"])),
            Row("pool", what, "proofbox, cold", median(took["cold"]), "ms", note=high(took["cold"])),
            Row("pool", what, "true in one that lives", median(took["rested"]), "ms", note=high(took["rested"])),
            Row("pool", "true in the same sandbox at once again", "proofbox", median(took["second"]), "ms"),
        ],
        ours="proofbox, warm",
    )
    calm = Row("pool", "hits while calm", "proofbox", 100 * (stats.hit_rate or 0), "%")
    return [*rows, calm, *await thousand(4, 50 if quick else 250)]
