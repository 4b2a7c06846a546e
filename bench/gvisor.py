"""gVisor: a life, a command and the idle memory of ours, against runsc by itself on the same platform."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import proofbox
from bench.life import ours_latency
from bench.measure import Row, interleave, median, timed, with_ratios
from bench.peers import TRUE, bundle, spawn
from proofbox.host.threads import descendants

BARE = "runsc by itself"
SLEEP = ["/usr/bin/sleep", "3600"]


class Bare:
    """runsc over the host's /usr: its default spec, a writable root, what it writes where ours is."""

    def __init__(self, program: str, system: str, folder: str) -> None:
        self.folder = folder
        options = (f"--platform={system}", "--network=none", "--ignore-cgroups", "--overlay2=none")
        self.words = [program, *options, "--root", f"{folder}/state"]

    def set(self, args: list[str]) -> None:
        """What the next container runs."""
        file = Path(self.folder, "config.json")
        config = json.loads(file.read_text())
        config["process"]["args"] = args
        file.write_text(json.dumps(config))

    def life(self) -> None:
        """``run``, as its users call it."""
        spawn([*self.words, "run", "--bundle", self.folder, f"bench-{time.monotonic_ns()}"])

    def command(self, name: str) -> None:
        """``exec`` in a container that runs."""
        spawn([*self.words, "exec", name, TRUE])

    @contextmanager
    def idle(self) -> Iterator[tuple[str, list[int]]]:
        """A container that sleeps: its name, and the processes that are there for it."""
        self.set(SLEEP)
        name = f"bench-idle-{os.getpid()}"
        subprocess.run([*self.words, "run", "--detach", "--bundle", self.folder, name], check=True)
        try:
            pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_of(path, self.folder)]
            yield name, sorted({pid for top in pids for pid in descendants(top)})
        finally:
            subprocess.run([*self.words, "delete", "--force", name], check=True)


def _is_of(path: Path, folder: str) -> bool:
    try:
        return folder.encode() in (path / "cmdline").read_bytes()
    except OSError:
        return False


def pss(pids: list[int]) -> float:
    """MiB of memory, what several share divided among them."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


async def measure(quick: bool) -> list[Row]:
    """In turns; nothing where runsc does not work."""
    try:
        host = await proofbox.Host.local("runsc")
    except proofbox.Refused:
        return []
    rounds = 10 if quick else 40
    facts = host.probe.facts
    with tempfile.TemporaryDirectory(prefix="bench-runsc-") as folder:
        bundle(facts["program"], folder)
        bare = Bare(facts["program"], facts["platform"], folder)
        await ours_latency(host, 2)
        lives: dict[str, list[float]] = {"proofbox": [], BARE: []}
        for _ in range(rounds):
            lives["proofbox"] += await ours_latency(host, 1)
            lives[BARE] += interleave({BARE: bare.life}, 1)[BARE]
        commands: dict[str, list[float]] = {"proofbox": [], BARE: []}
        async with host.open_sandbox("host") as box:
            await box.run([TRUE])
            observed = box._life.observe()
            memory = {"proofbox": pss(list(observed[0]) if observed else [])}
            with bare.idle() as (name, pids):
                memory[BARE] = pss(pids)
                for _ in range(rounds):
                    start = time.perf_counter()
                    await box.run([TRUE])
                    commands["proofbox"].append((time.perf_counter() - start) * 1e3)
                    commands[BARE].append(timed(functools.partial(bare.command, name)))
    note = facts["platform"]
    rows: list[Row] = []
    for what, took in (("create + true + destroy, one at a time", lives), ("run true, result in hand", commands)):
        rows += with_ratios([Row("gvisor", what, who, median(times), "ms", note=note) for who, times in took.items()])
    idle = [Row("gvisor", "memory, idle", who, value, "MiB", note=note) for who, value in memory.items()]
    return rows + with_ratios(idle)
