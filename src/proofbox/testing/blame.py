"""Experiments on whose doing a time limit was: programs of which it is known, under a limit, on idle and busy hosts.

``tests/limits`` runs some of them, ``scripts/bench blame`` hundreds. Nothing here knows how causes are told apart.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.model.limits import Limits
from proofbox.model.outcome import Cause, HitLimit
from proofbox.model.spec import Volume
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

TIMES: Final = 10
"""Programs that compute for each processor, on a busy host."""
LOAD: Final = "while kill -0 $PPID; do n=20000; while [ $n -gt 0 ]; do n=$((n - 1)); done; done 2> /dev/null"
"""Computes as long as its maker lives: a load that ended before what it was to hold up would make the truth another."""
GOT: Final = 0.85
"""Share of its quota from which on a program has got it: others did not take it."""
IDLE: Final = 0.4
"""Share of the processors that others may use on a host that counts as idle."""
FILES, FILE_BYTES = 40, 1 << 20
SLOW_DISK: Final = 1 << 20
"""Bytes a second of a slow disk."""
BLKIO, CPU = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup/cpu")
HEAVY: Final = 262_144
"""The largest weight of a group, 256 times the usual one."""

SPIN: Final = "while :; do :; done"
DEADLOCK: Final = """
import threading
a, b = threading.Lock(), threading.Lock()
barrier = threading.Barrier(2)
def take(first, second):
    with first:
        barrier.wait()
        second.acquire()
for pair in ((a, b), (b, a)):
    threading.Thread(target=take, args=pair).start()
"""
SPIN_THEN_WAIT: Final = """
import threading, time
until = time.process_time() + {seconds}
while time.process_time() < until:
    pass
threading.Lock().acquire() and threading.Event().wait()
"""
BUILD: Final = """
compile() { i=0; while [ $i -lt 2500 ]; do i=$((i+1)); done; /bin/true; }
while :; do compile & compile & wait; done
"""


@dataclass(frozen=True, slots=True)
class Experiment:
    """``text`` runs under the limit; ``truth`` is whose doing it is when that fires."""

    name: str
    truth: Cause
    text: str
    busy_host: bool = False
    slow_disk: bool = False
    open_stdin: bool = False
    cpus: float | None = None
    first: bool = False
    """It is what it is only where nothing else takes the processor from it."""
    least: float = 0.0
    """Seconds that it needs to become what it is."""


def experiments(choose: random.Random, seconds: float) -> list[Experiment]:
    """One of each, with parameters drawn at random, for a limit of so many seconds."""
    take = "(flock 8; : > {0}.held; until [ -e {1}.held ]; do sleep .02; done; flock 9) 8> {0} 9> {1} & "
    locks = take.format("a", "b") + take.format("b", "a") + "wait"
    spin_then_wait = SPIN_THEN_WAIT.format(seconds=seconds * choose.uniform(0.1, 0.25))
    computing = {
        "busy loop": SPIN,
        "busy loop in Python": "exec python3 -c 'while True: pass'",
        "short-lived children": "while :; do /bin/true; done",
        "a build": BUILD,
        "a pipeline": "yes | head -c 1T | sha256sum",
    }
    blocked = {
        "sleep": f"sleep {choose.randint(60, 999)}",
        "deadlock of processes": locks,
        "a FIFO that nobody opens": "mkfifo f; cat f",
        "stops itself": "kill -STOP $$",
        "a stopped pipeline": f"(kill -STOP $(sh -c 'echo $PPID'); echo) | sort & sleep {choose.randint(60, 99)}",
    }
    found = [Experiment(name, "task", text, first=True) for name, text in computing.items()]
    found += [Experiment(name, "hung", text) for name, text in blocked.items()]
    two = f"({SPIN}) & {SPIN}"
    found += [
        Experiment("cat on an open stdin", "hung", "exec cat", open_stdin=True),
        Experiment("deadlock of threads", "hung", f"exec python3 -c '{DEADLOCK}'", first=True),
        Experiment("computes, then blocks", "hung", f"exec python3 -c '{spin_then_wait}'", first=True),
        Experiment("its own quota", "task", SPIN, cpus=round(choose.uniform(0.1, 0.6), 2), first=True),
        Experiment("its own quota, two loops", "task", two, cpus=round(choose.uniform(0.2, 0.8), 2), first=True),
    ]
    found += [Experiment(f"{name}, busy host", "host", text, busy_host=True) for name, text in computing.items()]
    found += [
        Experiment("its own quota, busy host", "host", SPIN, busy_host=True, cpus=0.7),
        Experiment("sleep, busy host", "hung", blocked["sleep"], busy_host=True),
        Experiment("deadlock of processes, busy host", "hung", locks, busy_host=True, least=2.0),
        Experiment("cat on an open stdin, busy host", "hung", "exec cat", busy_host=True, open_stdin=True),
        Experiment("a build on a slow disk", "host", "for f in /data/*; do sha256sum $f; done", slow_disk=True),
    ]
    return found


async def run(host: Host, experiment: Experiment, seconds: float, data: Path) -> HitLimit:
    """Runs one to its limit. ``data``: a directory of files, by ``make_files``, on a disk."""
    seconds = max(seconds, experiment.least)
    limits = Limits(cpus=experiment.cpus) if experiment.cpus else None
    volumes = (Volume(str(data), "/data"),) if experiment.slow_disk else ()
    async with host.open_sandbox("host", limits=limits, volumes=volumes) as box:
        pids = _processes(box)
        with (
            slow_disk(data, pids) if experiment.slow_disk else nullcontext(),
            first_in_line(pids) if experiment.first else nullcontext(),
        ):
            place = "/tmp" if host.level != "none" else None  # a place of its own there
            command = await box.start(experiment.text, cwd=place, stdin=experiment.open_stdin, timeout=seconds, keep=0)
            outcome = (await command.wait()).outcome
    if not isinstance(outcome, HitLimit):
        raise AssertionError(f"{experiment.name} ended by itself: {outcome}")
    return outcome


def is_fair(experiment: Experiment, hit: HitLimit) -> bool:
    """The host was what the experiment says: a program at its own quota got that, or nobody took it. See ``_heavy``."""
    if not experiment.cpus or not experiment.first:
        return True
    seen = hit.evidence
    if seen is None or seen.host is None or seen.host.others is None:
        return True
    got_it = (seen.cpu or 0.0) >= GOT * experiment.cpus * seen.seen
    return got_it or seen.host.others <= IDLE * processors() * seen.seen


@contextmanager
def busy_host(times: int = TIMES) -> Iterator[None]:
    """So many times more programs that compute than there are processors, each in a session of its own."""
    count = times * processors()
    load = [subprocess.Popen(["sh", "-c", LOAD], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for each in load:
            each.terminate()
        for each in load:
            each.wait()


def processors() -> int:
    """How many there are to be busy."""
    return len(os.sched_getaffinity(0))


def make_files(directory: Path) -> None:
    """What a build would read."""
    for number in range(FILES):
        (directory / str(number)).write_bytes(os.urandom(FILE_BYTES))
    os.sync()


def no_slow_disk(directory: Path) -> str:
    """Why there can be no slow disk here; "" if there can be one."""
    if not os.access(BLKIO / "cgroup.procs", os.W_OK):
        return "a slow disk needs the blkio control group of version 1, and root"
    if os.stat(directory).st_dev >> 8 == 0:
        return f"{directory} is not on a disk"
    return ""


def no_first_in_line() -> str:
    """Why no sandbox can be given the processor before all others here; "" if one can."""
    try:
        with _real_time(os.getpid(), 1):
            pass
    except PermissionError:
        return "an idle host needs the right to real-time scheduling"
    return "" if os.access(CPU / "cgroup.procs", os.W_OK) else "an idle host needs the cpu control group, and root"


@contextmanager
def first_in_line(pids: Sequence[int]) -> Iterator[None]:
    """For these processes the host is as good as idle: they have the processor before all others, and we before them.

    The scheduler does not apply a quota to what has such a priority, so a sandbox with one gets a great weight instead;
    that serves for those that compute all the time.
    """
    group = CPU / _cpu_group(pids[0])
    if group != CPU:
        with _heavy([each for each in (group, *group.parents) if each.is_relative_to(CPU) and each != CPU]):
            yield
        return
    for pid in pids:
        with suppress(ProcessLookupError):  # what started the sandbox ends about now
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    with _real_time(os.getpid(), 2):
        yield


@contextmanager
def _heavy(groups: Sequence[Path]) -> Iterator[None]:
    """A group gets no more than those around it, which are weighed against all other work: all are heavy."""
    before = [((group / "cpu.shares"), (group / "cpu.shares").read_text()) for group in groups]
    try:
        for shares, _ in before:
            shares.write_text(str(HEAVY))
        yield
    finally:
        for shares, weight in before:
            if shares.exists():  # the sandbox may be gone, and its group with it
                shares.write_text(weight)


@contextmanager
def _real_time(pid: int, priority: int) -> Iterator[None]:
    os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    try:
        yield
    finally:
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def _cpu_group(pid: int) -> str:
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return next(path for _, controllers, path in lines if "cpu" in controllers.split(",")).lstrip("/")


@contextmanager
def slow_disk(directory: Path, pids: Sequence[int]) -> Iterator[None]:
    """The disk below the directory is slow for these processes, and nothing of it is in memory."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    device = os.stat(directory).st_dev
    group = BLKIO / f"proofbox-slow-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        rate = f"{os.major(device)}:{os.minor(device)} {SLOW_DISK}"
        (group / "blkio.throttle.read_bps_device").write_text(rate)
        for pid in pids:
            with suppress(ProcessLookupError):  # what started the sandbox ends about now
                (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Moves who is still in it out, and removes it."""
    for pid in (group / "cgroup.procs").read_text().split():
        try:
            (group.parent / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            continue
    group.rmdir()


def _processes(box: Sandbox) -> Sequence[int]:
    """As the host numbers them; no public way leads to them, since no user has a use for it."""
    observed = box._life.observe()  # the experiment plays the host's part
    return observed[0] if observed else ()
