"""gVisor: a life, a command and the idle memory of ours, against runsc by itself on the same platform."""

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

import msgspec

import proofbox
from bench.life import ours_latency
from bench.measure import Row, interleave, median, shared_memory, timed, with_ratios
from bench.peers import TRUE, empty_root, spawn
from proofbox.host.idmap import LOWEST, find_ids
from proofbox.host.threads import descendants
from proofbox.kit.binary import guest_path
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec
from proofbox.runtimes.oci.bundle import confined
from proofbox.runtimes.oci.config import GUEST, bundle_config
from proofbox.runtimes.oci.programs import MAKES

BARE = "runsc by itself"
SLEEP = ["/usr/bin/sleep", "3600"]


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
        file = self.folder / "config.json"
        config = json.loads(file.read_text())
        config["process"]["args"] = args
        file.write_text(json.dumps(config))

    def life(self) -> None:
        """``run``, as its users call it."""
        spawn([*self.words, "run", "--bundle", str(self.folder), f"bench-{time.monotonic_ns()}"])

    def command(self, name: str) -> None:
        """``exec`` in a container that runs."""
        spawn([*self.words, "exec", name, TRUE])

    @contextmanager
    def idle(self) -> Iterator[tuple[str, list[int]]]:
        """A container that sleeps: its name, and the processes that are there for it."""
        self.set(SLEEP)
        name = f"bench-idle-{os.getpid()}"
        subprocess.run([*self.words, "run", "--detach", "--bundle", str(self.folder), name], check=True)
        try:
            pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_of(path, str(self.folder))]
            yield name, sorted({pid for top in pids for pid in descendants(top)})
        finally:
            subprocess.run([*self.words, "delete", "--force", name], check=True)


def _is_of(path: Path, folder: str) -> bool:
    try:
        return folder.encode() in (path / "cmdline").read_bytes()
    except OSError:
        return False


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
        await ours_latency(host, 2)
        lives: dict[str, list[float]] = {"proofbox": [], BARE: []}
        for _ in range(rounds):
            lives["proofbox"] += await ours_latency(host, 1)
            lives[BARE] += interleave({BARE: bare.life}, 1)[BARE]
        commands: dict[str, list[float]] = {"proofbox": [], BARE: []}
        async with host.open_sandbox("host") as box:
            await box.run([TRUE])
            observed = box._life.observe()
            memory = {"proofbox": shared_memory(observed[0] if observed else ())}
            with bare.idle() as (name, pids):
                memory[BARE] = shared_memory(pids)
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
