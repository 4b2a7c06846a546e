"""gVisor: a life and a command of ours, against runsc by itself on the same platform: as it comes, and with the limits
that ours has, which runsc sets by itself too. For memory see ``density``.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import proofbox
from bench.life import ours_latency
from bench.measure import Row, interleave, median, timed, with_ratios
from bench.peers import SLEEP, TRUE, empty_root, spawn
from proofbox.host.idmap import LOWEST, find_ids
from proofbox.kit.binary import guest_path
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec
from proofbox.runtimes.oci.bundle import confined
from proofbox.runtimes.oci.config import GUEST, bundle_config
from proofbox.runtimes.oci.programs import MAKES

BARE = "runsc by itself"
LIMITED = "runsc, our limits"
GROUPS = "proofbox-bench"


class Bare:
    """runsc with the bundle that ours gives it (ids, mounts, capabilities), but for the overlay over the host's /usr,
    which is shown read-only.
    """

    def __init__(self, program: str, system: str, folder: Path) -> None:
        self.folder = folder
        make = MAKES["runsc"]
        self.words = [program, *make.options, "--network=none", f"--platform={system}", "--root", f"{folder}/state"]
        ids = find_ids()
        base = LOWEST if ids.full else 0
        spec = SandboxSpec(id="bench", template="host", limits=Limits())
        config = bundle_config(spec, str(folder), ids.map_of(base), [GUEST], confined(), make)
        config["mounts"].append({"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]})
        (folder / "config.json").write_bytes(msgspec.json.encode(config))
        for name in ("layer/shm", "volume"):
            (folder / name).mkdir(parents=True)
        shutil.copy(guest_path(), folder / "volume/0")
        root = empty_root(folder)
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
        for path in (root, *root.rglob("*"), folder / "layer/shm"):
            os.lchown(path, base, base)
        self.set([TRUE])

    def set(self, args: list[str]) -> None:
        """What the next container runs."""
        with self._changed() as config:
            config["process"]["args"] = args

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        file = self.folder / "config.json"
        config = json.loads(file.read_text())
        yield config
        file.write_text(json.dumps(config))

    def life(self) -> None:
        """``run``, as its users call it."""
        spawn([*self.words, "run", "--bundle", str(self.folder), f"bench-{time.monotonic_ns()}"])

    def limited_life(self, memory: int, processes: int) -> None:
        """The same, in control groups that runsc makes and removes."""
        name = f"bench-{time.monotonic_ns()}"
        with self._changed() as config:
            config["linux"]["cgroupsPath"] = f"/{GROUPS}/{name}"
            config["linux"]["resources"] = {"memory": {"limit": memory}, "pids": {"limit": processes}}
        words = [word for word in self.words if word != "--ignore-cgroups"]
        spawn([*words, "run", "--bundle", str(self.folder), name])

    @staticmethod
    def remove_groups() -> None:
        """What runsc leaves above the group of each container."""
        for group in (*Path("/sys/fs/cgroup").glob(GROUPS), *Path("/sys/fs/cgroup").glob(f"*/{GROUPS}")):
            group.rmdir()

    def command(self, name: str) -> None:
        """``exec`` in a container that runs."""
        spawn([*self.words, "exec", name, TRUE])

    def detached(self) -> list[str]:
        """What makes a container and leaves it, but for its name."""
        return [*self.words, "run", "--detach", "--bundle", str(self.folder)]

    @contextmanager
    def idle(self) -> Iterator[str]:
        """A container that sleeps: its name."""
        self.set(SLEEP)
        name = f"bench-idle-{os.getpid()}"
        subprocess.run([*self.detached(), name], check=True)
        try:
            yield name
        finally:
            subprocess.run([*self.words, "delete", "--force", name], check=True)


async def measure_lives(host: proofbox.Host, bare: Bare, rounds: int) -> dict[str, list[float]]:
    """In turns. Without root runsc makes no control groups, and ours are where it cannot be told to be."""
    theirs = {BARE: bare.life}
    limits = host.effective(None)
    if os.geteuid() == 0 and limits.memory is not None and limits.processes is not None:
        processes = MAKES["runsc"].own_tasks + limits.processes
        theirs[LIMITED] = functools.partial(bare.limited_life, limits.memory, processes)
    await ours_latency(host, 2)
    took: dict[str, list[float]] = {"proofbox": [], **{name: [] for name in theirs}}
    try:
        for _ in range(rounds):
            took["proofbox"] += await ours_latency(host, 1)
            for name, times in interleave(theirs, 1).items():
                took[name] += times
    finally:
        bare.remove_groups()
    return took


async def measure(quick: bool) -> list[Row]:
    """In turns; nothing where runsc does not work."""
    try:
        host = await proofbox.Host.local("runsc")
    except proofbox.Refused:
        return []
    rounds = 10 if quick else 40
    facts = host.probe.facts
    with tempfile.TemporaryDirectory(prefix="bench-runsc-") as folder:
        bare = Bare(facts["program"], facts["platform"], Path(folder))
        lives = await measure_lives(host, bare, rounds)
        commands: dict[str, list[float]] = {"proofbox": [], BARE: []}
        async with host.open_sandbox("host") as box:
            await box.run([TRUE])
            with bare.idle() as name:
                for _ in range(rounds):
                    start = time.perf_counter()
                    await box.run([TRUE])
                    commands["proofbox"].append((time.perf_counter() - start) * 1e3)
                    commands[BARE].append(timed(functools.partial(bare.command, name)))
    note = facts["platform"]
    rows: list[Row] = []
    for what, took in (("create + true + destroy, one at a time", lives), ("run true, result in hand", commands)):
        rows += with_ratios([Row("gvisor", what, who, median(times), "ms", note=note) for who, times in took.items()])
    return rows
