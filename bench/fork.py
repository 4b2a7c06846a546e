"""Forks of a prepared sandbox by how much it wrote: from it frozen, and from it live, beside the fork of nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import proofbox
from bench.measure import Row, median
from proofbox.model.limits import MIB, Limits
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

FILL = "mkdir /w; for i in $(seq {count}); do head -c {size} /dev/urandom > /w/$i; done"
PARENTS = {
    "nothing": "true",
    "20 MB": FILL.format(count=20, size=1_000_000),
    "200 MB": FILL.format(count=20, size=10_000_000),
    "1,000 MB": FILL.format(count=20, size=50_000_000),
    "5,000 files": "mkdir /w; cd /w; seq 5000 | xargs -n1 sh -c 'echo $0 > $0'",
}
LIMITS = Limits(disk=1400 * MIB, memory=2000 * MIB)


async def timed(act: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    await act()
    return (time.perf_counter() - start) * 1e3


async def life_of_a_fork(parent: Sandbox, count: int = 1) -> float:
    """Forks it, runs ``true`` in each child, ends them: milliseconds for each child."""

    async def act() -> None:
        async with parent.fork(count) as children:
            for child in children:
                assert (await child.run(["/usr/bin/true"])).ok

    return await timed(act) / count


def rows_of(what: str, took: dict[str, list[float]]) -> list[Row]:
    """Each beside the fork of nothing: the ratio says how much it grows with what was written."""
    least = median(took["nothing"])
    return [
        Row("fork", what, name, median(values), "ms", median(values) / least, "its time over that for nothing")
        for name, values in took.items()
    ]


async def parents(host: Host, stack: AsyncExitStack) -> dict[str, Sandbox]:
    """One that wrote each of these."""
    made = {}
    for name, script in PARENTS.items():
        limits = host.effective(None) if "memory" not in host.probe.enforces else LIMITS
        made[name] = await stack.enter_async_context(host.open_sandbox("host", limits=limits))
        result = await made[name].run(script)
        assert result.ok, result.stderr
    return made


async def measure(quick: bool) -> list[Row]:
    """Rounds in turn, so that a noisy minute hits all alike."""
    rounds = 2 if quick else 15
    host = await proofbox.Host.local("native")
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        prepared = await parents(host, stack)
        live: dict[str, list[float]] = {name: [] for name in prepared}
        for _ in range(max(2, rounds // 5)):
            for name, box in prepared.items():
                live[name].append(await life_of_a_fork(box))
        rows += rows_of("fork of a live one, command, end", live)
        frozen: dict[str, list[float]] = {name: [] for name in prepared}
        eight: dict[str, list[float]] = {name: [] for name in prepared}
        freezing = {name: [await timed(box.freeze)] for name, box in prepared.items()}
        for _ in range(rounds):
            for name, box in prepared.items():
                frozen[name].append(await life_of_a_fork(box))
                eight[name].append(await life_of_a_fork(box, 8))
        rows += rows_of("freeze", freezing)
        rows += rows_of("fork of a frozen one, command, end", frozen)
        rows += rows_of("the same of eight, each", eight)
        rows += await _depth(prepared["nothing"], quick)
    return rows


async def _depth(frozen: Sandbox, quick: bool) -> list[Row]:
    """A line of forks of forks: what each layer more costs a start and a look for what is nowhere."""
    rows, box = [], frozen
    async with AsyncExitStack() as stack:
        for depth in range(1, 33):
            (box,) = await stack.enter_async_context(box.fork())
            if depth in (1, 8, 16, 32):
                start = [await timed(partial(_true, box)) for _ in range(5 if quick else 30)]
                program = "import os,time\nt=time.perf_counter()\nfor i in range(20000): os.path.exists(f'/none/{i}')"
                looks = (
                    await box.run(["python3", "-c", f"{program}\nprint((time.perf_counter()-t)/20000*1e6)"])
                ).stdout
                python = [await timed(partial(_python, box)) for _ in range(2 if quick else 10)]
                name = f"{depth} layers"
                rows.append(Row("fork", "true in one over", name, median(start), "ms"))
                rows.append(Row("fork", "python -c pass in one over", name, median(python), "ms"))
                rows.append(Row("fork", "a look for a missing name", name, float(looks), "us"))
            await box.write(f"/depth/{depth}", "x")
            await box.freeze()
    return rows


async def _true(box: Sandbox) -> None:
    assert (await box.run(["/usr/bin/true"])).ok


async def _python(box: Sandbox) -> None:
    assert (await box.run(["python3", "-c", "pass"])).ok
