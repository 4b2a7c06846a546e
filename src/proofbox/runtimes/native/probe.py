"""Whether this host can run native sandboxes: a real one is made, and what stops it is named with its remedy."""

from __future__ import annotations

import platform
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import anyio

from proofbox.errors import CreateFailed, InvalidInput, Refused
from proofbox.host.cgroup import Place
from proofbox.host.idmap import Ids
from proofbox.host.layers import NO_MARKS, marked_by_root, takes_marks
from proofbox.host.owner import Owner
from proofbox.host.processors import CAN_WIDEN, held_by
from proofbox.host.remedies import explain
from proofbox.host.room import Takes
from proofbox.model.limits import LimitKind, Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtime.contract import Handle, Missing, Probe

DEADLINE_S: Final = 20.0
DIRECTORY: Final = "native-probe"

TAKES: Final = Takes(files=3, all_files=24, tasks=1, memory=768 << 10)
"""Measured over 20 sandboxes: 3 descriptors here, 10 open files, 13 more with a command; over 1,000 idle ones 0.55 to
0.75 MiB. With a range of ids for each the kernel counts namespaces and inotify instances for each sandbox by itself."""


class Maker(Protocol):
    """What the probe needs of the runtime."""

    async def create(self, spec: SandboxSpec, template: Template) -> Handle: ...

    async def destroy(self, handle: Handle) -> None: ...


async def probe_host(runtime: Maker, owner: Owner, ids: Ids, place: Place, enforces: frozenset[LimitKind]) -> Probe:
    """The probe. Leaves nothing behind."""
    missing: tuple[Missing, ...] = ()
    try:
        with anyio.fail_after(DEADLINE_S):
            await _try(runtime, owner, enforces)
    except Refused as refused:
        missing = tuple(map(Missing.of, refused.missing))
    except InvalidInput as unknown:
        missing = (Missing(str(unknown)),)
    except TimeoutError:
        missing = (Missing(f"a first sandbox was not made and ended within {DEADLINE_S:g} s", "look for a hung mount"),)
    except (CreateFailed, OSError) as failed:
        missing = (Missing(*explain(str(failed))),)
    return Probe(
        usable=not missing,
        level="container",
        enforces=enforces,
        networks=frozenset({"none", "host"}),
        users=ids.users,
        own_identity=True,
        missing=missing,
        notes=() if missing else notes(ids, place),  # what kept it from being tried may keep this from being found
        facts=facts(ids, place),
        takes=replace(TAKES, namespaces=(), watches=0) if ids.full else TAKES,
    )


async def _try(runtime: Maker, owner: Owner, enforces: frozenset[LimitKind]) -> None:
    """One sandbox on an empty root. Every step of the real thing is in it, and every limit that can be."""
    root = owner.dir / DIRECTORY
    root.mkdir(mode=0o755, exist_ok=True)
    try:
        wanted = Limits(memory=64 << 20, processes=16, cpus=1.0, disk=1 << 20, inodes=64)
        limits = Limits(**{kind: getattr(wanted, kind) for kind in wanted.asked() if kind in enforces})
        template = Template(digest="", name="probe", layers=(Layer("/", str(root)),), env={})
        spec = SandboxSpec(id=f"probe-{secrets.token_hex(4)}", template="probe", limits=limits)
        await runtime.destroy(await runtime.create(spec, template))
    finally:
        remove_probe_directory(owner)


def remove_probe_directory(owner: Owner) -> int:
    """Removes what a probe leaves that was killed: an empty directory. How many there were."""
    try:
        (owner.dir / DIRECTORY).rmdir()
    except FileNotFoundError:
        return 0
    return 1


def notes(ids: Ids, place: Place) -> tuple[str, ...]:
    """What is weaker here than it could be."""
    found: list[str] = []
    if not ids.users:
        found.append(
            f"one id inside, the sandbox's root, as {ids.why_not}: commands cannot run as another user, packages that "
            "need several users cannot be installed, and the caller's supplementary groups stay in force"
        )
    if not takes_marks() and not marked_by_root(ids):
        found.append(NO_MARKS)
    if not place.directories:
        why = "; ".join(place.missing)
        found.append(
            f"no limit on memory or CPU, and none of their counters: {why} "
            "(run as root, or below a delegated group: systemd-run --user --scope -p Delegate=yes COMMAND)"
        )
    else:
        absent = [each for each in ("memory", "pids", "cpu") if each not in place.directories]
        found += (f"controller {each} is not used" for each in absent)
        found += place.missing
        if "cpu" in place.directories and "cpuset" not in place.directories:
            found.append(CAN_WIDEN)
    if place.version == 1 and "memory" in place.directories and not place.swap and _has_swap():
        found.append("swap is not counted: the kernel keeps no count of it (boot with swapaccount=1, or swapoff -a)")
    return tuple(found)


def facts(ids: Ids, place: Place) -> dict[str, str]:
    """For the record of each trial."""
    found = {
        "kernel": platform.release(),
        "ids": ids.described(),
        "cgroup": f"v{place.version}" if place.directories else "none",
        "processors": held_by(place.directories),
    }
    found |= {f"cgroup {controller}": str(path) for controller, path in place.directories.items()}
    return found


def _has_swap() -> bool:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) > 0
    return False
