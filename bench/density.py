"""Many idle sandboxes of each level, alive at one time, and as many of the bare tool: what each takes of this host.

``memory`` is what MemAvailable fell by: of all accounts only that one has what the kernel holds for a sandbox (control
groups, mounts, page tables, network); but what others do meanwhile is in it too. ``pss``, the memory of its processes,
what several share divided among them, is what it is whatever others do.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from pathlib import Path

import anyio

import proofbox
from bench.gvisor import BARE, Bare
from bench.measure import Row, median, with_ratios
from bench.microvm import BY_HAND, by_hand
from bench.peers import SLEEP, bwrap_argv, oci_bundle, run_floor
from proofbox.host.apart import NAMESPACES
from proofbox.host.threads import descendants
from proofbox.model.template import Template
from proofbox.runtimes.microvm.parts import Parts, find, find_parts
from proofbox.sandbox.api import Sandbox
from proofbox.templates.store import open_store
from proofbox.testing.small import small_template

COUNTS = {"microvm": (4, 2), "runsc": (20, 3), "runc": (100, 3), "crun": (200, 3), "native": (1000, 1)}
"""How many of each level, a fifth of it for a look, and how often. Those that leave the kernel the most come last."""
OURS = "proofbox"
Open = Callable[[int], AbstractAsyncContextManager[object] | AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Look:
    """At one moment. ``memory`` in KiB that are available; ``pss`` in KiB and ``threads`` of what is below us;
    descriptors here, open files of the machine; ``mounts`` in namespaces that are not ours; ``namespaces`` of the kind
    of which there are most.
    """

    memory: float
    pss: float
    threads: float
    files: float
    all_files: float
    mounts: float
    namespaces: float

    def each(self, before: Look, count: int) -> Look:
        """What one of ``count`` has taken since."""
        taken = [(getattr(self, name) - getattr(before, name)) / count for name in self.__slots__]
        return Look(-taken[0], *taken[1:])


def look() -> Look:
    """Some milliseconds."""
    spaces: dict[str, set[str]] = {kind: set() for kind in NAMESPACES}
    threads = mounts = pss = 0
    for pid in descendants(os.getpid())[1:]:
        with contextlib.suppress(OSError):  # it has ended
            threads += len(os.listdir(f"/proc/{pid}/task"))
            pss += _number_of("Pss:", f"/proc/{pid}/smaps_rollup")
            for kind, seen in spaces.items():
                name = os.readlink(f"/proc/{pid}/ns/{kind}")
                if kind == "mnt" and name not in {*seen, os.readlink("/proc/self/ns/mnt")}:
                    mounts += len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
                seen.add(name)
    return Look(
        _number_of("MemAvailable:", "/proc/meminfo"),
        pss,
        threads,
        len(os.listdir("/proc/self/fd")),
        int(Path("/proc/sys/fs/file-nr").read_text().split()[0]),
        mounts,
        max(map(len, spaces.values())),
    )


def _number_of(name: str, path: str) -> int:
    """KiB in the line of that name."""
    return next((int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(name)), 0)


@dataclass(frozen=True, slots=True)
class Taken:
    """Milliseconds to make so many and to end them, what each took when idle, and with a command that runs in each."""

    made: float
    ended: float
    idle: Look
    busy: Look


@asynccontextmanager
async def ours(host: proofbox.Host, template: Template | str, count: int) -> AsyncIterator[list[Sandbox]]:
    """Sandboxes whose guest has answered."""
    boxes: list[Sandbox] = []
    stacks: list[AsyncExitStack] = []

    async def make() -> None:
        stack = AsyncExitStack()
        boxes.append(await stack.enter_async_context(host.open_sandbox(template)))
        stacks.append(stack)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(make)
    yield boxes
    async with anyio.create_task_group() as tasks:
        for stack in stacks:
            tasks.start_soon(stack.aclose)


@contextmanager
def bwrap(count: int) -> Iterator[None]:
    """Each with a program that waits for the end of its input."""
    argv = bwrap_argv(["/usr/bin/sh", "-c", "echo ready; read x"]) or []
    boxes = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    for box in boxes:
        assert box.stdout is not None
        box.stdout.readline()
    yield
    for box in boxes:
        box.kill()
    for box in boxes:
        box.wait()


@contextmanager
def oci(words: list[str], count: int) -> Iterator[None]:
    """Containers that sleep, which that command with a name makes and leaves; ``words[0]`` is the program.

    They are left to a shell, the first process of a namespace: so we see them, and it reaps what is deleted.
    """
    program, rest, name = words[0], words[1 : words.index("run")], f"bench-{time.monotonic_ns()}"
    loop = (
        "umount /sys/fs/cgroup/unified 2>/dev/null; i=0; while [ $i -lt $0 ]; do i=$((i+1)); "
        f'"$@" {name}-$i </dev/null >/dev/null || exit 1; done; echo ready; read x; '
        f"while [ $i -gt 0 ]; do {program} {' '.join(rest)} delete --force {name}-$i; i=$((i-1)); done"
    )
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", loop, str(count)]
    with subprocess.Popen([*argv, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as all_of_them:
        assert all_of_them.stdout is not None
        if not all_of_them.stdout.readline():
            raise RuntimeError(f"{program} made fewer than {count} containers")
        yield
        all_of_them.communicate(b"\n")


@contextmanager
def machines_by_hand(parts: Parts, count: int) -> Iterator[None]:
    """Booted one after another, until each waits."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(by_hand(parts))
        yield


async def _enter(stack: AsyncExitStack, opened: Open, count: int) -> object:
    made = opened(count)
    if isinstance(made, AbstractAsyncContextManager):
        return await stack.enter_async_context(made)
    return stack.enter_context(made)


async def _batch(opened: Open, count: int) -> tuple[AsyncExitStack, float, Look, Look]:
    """So many more, beside those that there are; what ends them, and the figures of ``Taken``."""
    before = look()
    start = time.perf_counter()
    stack = AsyncExitStack()
    boxes = await _enter(stack, opened, count)
    made = time.perf_counter() - start
    await anyio.sleep(1.0)
    idle = busy = look().each(before, count)
    if isinstance(boxes, list):
        for box in boxes:
            await box.start(SLEEP)
        busy = look().each(before, count)
    return stack, made * 1e3, idle, busy


def _middle(looks: list[Look]) -> Look:
    return Look(*(median([getattr(each, name) for each in looks]) for name in Look.__slots__))


async def measured(contenders: dict[str, Open], count: int, rounds: int, level: str) -> dict[str, Taken]:
    """In turns, the first with one of each, in which comes what all have in common; medians.

    All live until the last was measured: what some have left to the kernel, which it keeps, would be the next ones'.
    """
    taken: dict[str, Taken] = {}
    batches: dict[str, list[tuple[AsyncExitStack, float, Look, Look]]] = {who: [] for who in contenders}
    async with AsyncExitStack() as everything:
        for number in (1, *[count] * rounds):
            for who, opened in contenders.items():
                batches[who].append(await _batch(opened, number))
                everything.push_async_exit(batches[who][-1][0])
        if level == "native":
            taken["kernel floor (C)"] = _floor(count)
        for who, all_of_it in reversed(batches.items()):
            ended = []
            for stack, *_ in reversed(all_of_it[1:]):
                start = time.perf_counter()
                await stack.aclose()
                ended.append((time.perf_counter() - start) * 1e3)
            _, made, idle, busy = zip(*all_of_it[1:], strict=True)
            taken[who] = Taken(median(made), median(ended), _middle(list(idle)), _middle(list(busy)))
    return {who: taken[who] for who in (*contenders, *taken)}


async def _others(level: str, host: proofbox.Host, folder: Path) -> dict[str, Open]:
    """The bare tools of that level that are here; ``folder`` is theirs."""
    program = host.probe.facts.get("program", "")
    if level == "native":
        return {} if bwrap_argv([]) is None else {"bwrap 0.11": bwrap}
    if level == "runsc":
        bare = Bare(program, host.probe.facts["platform"], folder)
        bare.set(SLEEP)
        return {BARE: functools.partial(oci, bare.detached())}
    if level == "microvm":
        return {BY_HAND: functools.partial(machines_by_hand, await find_parts(find()))}
    oci_bundle(program, str(folder), SLEEP)
    words = [program, "--root", f"{folder}/state", "run", "--detach", "--bundle", str(folder)]
    return {f"{level} by itself": functools.partial(oci, words)}


def _rows(level: str, count: int, found: dict[str, Taken], host: proofbox.Host) -> list[Row]:
    """Of one level, with what ``doctor --concurrency`` says of it beside what was measured."""
    takes, first = host.probe.takes, next(room for room in host.rooms() if room.hard)
    said = {
        "memory": f"doctor says {takes.memory >> 10}",
        "threads": f"doctor says {takes.tasks}",
        "files": f"doctor says {takes.files}",
        "namespaces": f"doctor says {max((each for _, each in takes.namespaces), default=0)}",
    }
    rows: list[Row] = []
    for what in ("made", "ended", *Look.__slots__):
        unit = "ms" if what in ("made", "ended") else "KiB each" if what in ("memory", "pss") else "each"
        some = []
        for who, taken in found.items():
            value = getattr(taken if unit == "ms" else taken.idle, what)
            note = said.get(what, "") if who == OURS else ""
            if math.isnan(value):
                continue
            some.append(Row("density", f"{level}: {count} idle, {what}", who, value, unit, note=note))
        rows += with_ratios(some)
    busy = found[OURS].busy
    command = f"{level}: {count} with a command"
    all_threads = f"doctor says {takes.tasks + takes.per_command}"
    rows += [
        Row("density", f"{command}, memory", OURS, busy.memory, "KiB each"),
        Row("density", f"{command}, pss", OURS, busy.pss, "KiB each"),
        Row("density", f"{command}, threads", OURS, busy.threads, "each", note=all_threads),
        Row("density", f"{command}, all_files", OURS, busy.all_files, "each", note=f"doctor says {takes.all_files}"),
        Row("density", f"{level}: so many fit here, of", OURS, first.holds, "", note=first.what),
    ]
    return rows


def _floor(count: int) -> Taken:
    """Measures itself: memory alone."""
    kernel = run_floor("idle", str(count))
    idle = Look(kernel["each_kib"], *[math.nan] * 6)
    return Taken(kernel["created_ms"], kernel["destroyed_ms"], idle, idle)


async def measure(quick: bool) -> list[Row]:
    """Each level that works here."""
    rows: list[Row] = []
    for level, (most, rounds) in COUNTS.items():
        try:
            host = await proofbox.Host.local(level)
        except proofbox.Refused:
            continue
        count = max(2, most // 5) if quick else most
        with tempfile.TemporaryDirectory(prefix=f"bench-{level}-") as folder:
            others = await _others(level, host, Path(folder))
            template = small_template(open_store()) if level == "microvm" else "host"  # packing all of it takes minutes
            contenders: dict[str, Open] = {OURS: functools.partial(ours, host, template), **others}
            found = await measured(contenders, count, rounds, level)
        rows += _rows(level, count, found, host)
    return rows
