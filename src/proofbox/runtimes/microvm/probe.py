"""Whether this host can run sandboxes in virtual machines: a real one is booted, and what stops it is named."""

from __future__ import annotations

import platform
import secrets
from typing import Final, Protocol

import anyio

from proofbox.errors import CreateFailed, ProofboxError, Refused
from proofbox.host.apart import NAMESPACES
from proofbox.host.cgroup import Place
from proofbox.host.layers import NO_MARKS
from proofbox.host.owner import Owner
from proofbox.host.remedies import explain
from proofbox.host.room import Takes
from proofbox.model.limits import MIB, LimitKind, Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtime.contract import Handle, Missing, Probe
from proofbox.runtimes.microvm.parts import Parts

DEADLINE_S: Final = 90.0
"""Emulated, on a busy host, a boot takes seconds; one that hangs must not hang us."""
DIRECTORY: Final = "microvm-probe"
TAKES: Final = Takes(
    files=5,
    all_files=128,
    tasks=8,
    per_command=0,
    namespaces=tuple((kind, 1) for kind in NAMESPACES if kind != "user"),
    memory=48 * MIB,
    watches=0,
    inodes=16,
)
"""``scripts/bench density``, rounded up, of emulated machines that went on from a saved state: 4 descriptors here, 85
open files (113 with a command), 7 threads, 45 MiB of each one's own. What runs inside takes nothing more but memory.
"""
EMULATED: Final = (
    "its processor is emulated ({why}): programs run several times slower, and QEMU's emulator is not made to hold "
    "what attacks it; so it is taken only where it is asked for by name, and is not of level 'vm'"
)


class Maker(Protocol):
    """What the probe needs of the runtime."""

    async def parts(self) -> Parts: ...

    async def create(self, spec: SandboxSpec, template: Template) -> Handle: ...

    async def destroy(self, handle: Handle) -> None: ...


async def probe(runtime: Maker, owner: Owner, place: Place, enforces: frozenset[LimitKind]) -> Probe:
    """The probe. Leaves nothing behind."""
    missing: tuple[Missing, ...] = ()
    parts: Parts | None = None
    try:
        with anyio.fail_after(DEADLINE_S):
            parts = await runtime.parts()
            await _try(runtime, owner)
    except Refused as refused:
        missing = tuple(map(Missing.of, refused.missing))
    except TimeoutError:
        missing = (Missing(f"a first machine was not booted within {DEADLINE_S:g} s"),)
    except (CreateFailed, OSError) as failed:
        missing = (Missing(*explain(str(failed))),)
    except ProofboxError as failed:
        missing = (Missing(str(failed)),)
    emulated = parts is not None and parts.accelerator == "tcg"
    return Probe(
        usable=not missing,
        level="user-kernel" if emulated else "vm",
        enforces=enforces,
        networks=frozenset({"none"}),
        users=True,
        own_identity=True,
        by_name_only=emulated,
        missing=missing,
        notes=_notes(parts, place, enforces),
        facts=_facts(parts),
        takes=TAKES,
    )


async def _try(runtime: Maker, owner: Owner) -> None:
    """A machine with an empty root."""
    root = owner.dir / DIRECTORY
    root.mkdir(mode=0o755, exist_ok=True)
    try:
        template = Template(digest="", name="probe", layers=(Layer("/", str(root)),), env={})
        limits = Limits(disk=MIB, inodes=64)  # memory and processors as usual: the first sandbox finds their state
        spec = SandboxSpec(id=f"probe-{secrets.token_hex(4)}", template="probe", limits=limits)
        await runtime.destroy(await runtime.create(spec, template))
    finally:
        root.rmdir()


def _notes(parts: Parts | None, place: Place, enforces: frozenset[LimitKind]) -> tuple[str, ...]:
    found: list[str] = []
    if parts is not None and parts.accelerator == "tcg":
        found.append(EMULATED.format(why=parts.evidence))
    if parts is not None and not parts.takes_marks and not parts.marked_by_root:
        found.append(f"kernel {parts.kernel.version} in the machine: {NO_MARKS}")
    if "cpus" not in enforces:
        why = "; ".join(place.missing) or "no such controller"
        found.append(f"no limit on processor time (cpus, cpu_time), and none of its counters: {why}")
    return tuple(found)


def _facts(parts: Parts | None) -> dict[str, str]:
    if parts is None:
        return {}
    return {
        "kernel": platform.release(),
        "guest kernel": parts.kernel.version,
        "accelerator": parts.accelerator,
        "accelerator evidence": parts.evidence,
        "machine": parts.qemu.board,
        "platform": parts.accelerator,
        "qemu": parts.qemu.version,
    }
