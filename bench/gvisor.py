"""gVisor: a life and a command of ours, against runsc by itself on the same platform. For memory see ``density``."""

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
