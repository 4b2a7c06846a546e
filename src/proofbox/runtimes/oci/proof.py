"""Whether an OCI runtime works on this host: by running one sandbox with nothing in it but the guest."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from typing import Final, Protocol

import anyio
import anyio.to_thread

from proofbox.errors import ProofboxError, Refused
from proofbox.host.cgroup import Place
from proofbox.host.idmap import find_ids
from proofbox.host.layers import NO_MARKS, takes_marks
from proofbox.host.owner import Owner
from proofbox.host.processors import CAN_WIDEN, held_by
from proofbox.host.remedies import explain
from proofbox.host.room import NAMESPACES, Takes
from proofbox.model.limits import LimitKind, Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtime.contract import Handle, Missing, Probe, Runtime
from proofbox.runtimes.oci.bundle import OPTIONS, Program
from proofbox.wire import frames
from proofbox.wire.guest import FATAL_LAYOUT, HOST_HELLO_LAYOUT, HostHello

DEADLINE: Final = 15.0
"""Seconds for the proof; a cold start from a slow disk included."""

ALWAYS: Final[frozenset[LimitKind]] = frozenset(
    {"disk", "inodes", "open_files", "process_memory", "wall", "idle", "command_wall", "output"}
)

_NAMESPACES: Final = tuple((kind, 2 if kind in ("mnt", "pid") else 1) for kind in NAMESPACES)
"""Our own program has two of its own."""

TAKES: Final = {
    "crun": Takes(all_files=48, tasks=4, namespaces=_NAMESPACES, memory=1280 << 10, inodes=16),
    "runc": Takes(all_files=48, tasks=24, namespaces=_NAMESPACES, memory=2560 << 10, inodes=16),
}
"""Measured over 20 sandboxes: 3 descriptors here, 29 open files, 15 inodes; crun 4 processes and 1.1 MiB, runc 12
threads and 2.4 MiB."""


class Owned(Runtime, Protocol):
    """A runtime that tells who it makes things for."""

    owner: Owner


def no_program(name: str | None) -> tuple[Missing, ...]:
    """What to install."""
    wanted = name or " or ".join(OPTIONS)
    return (Missing(f"no {wanted} on this host", f"apt install {name or next(iter(OPTIONS))}"),)


async def probe(runtime: Owned, program: Program | None, place: Place) -> Probe:
    """The whole answer. Leaves nothing."""
    ids = await anyio.to_thread.run_sync(find_ids)
    missing = no_program(runtime.name if runtime.name in OPTIONS else None) if program is None else ()
    version = ""
    if program is not None:
        version = await _version(program)
        why = await _try(runtime)
        if why is not None:
            missing = (Missing(f"{program.path} cannot run a sandbox here: {why.what}", why.remedy),)
    weaker = [*place.missing]
    if "cpu" in place.directories and "cpuset" not in place.directories:
        weaker.append(CAN_WIDEN)
    if not ids.full and not takes_marks():
        weaker.append(NO_MARKS)
    if not ids.users:
        weaker.append(f"one id inside: {ids.why_not}")
    return Probe(
        usable=not missing,
        level="container",
        enforces=ALWAYS | place.enforces(),
        networks=frozenset({"none", "host"}),
        users=ids.users,
        own_identity=program is not None and program.own_boot_id,
        missing=missing,
        notes=tuple(weaker),
        facts={
            "kernel": platform.release(),
            "program": program.path if program else "",
            "program_version": version,
            "ids": ids.described(),
            "cgroup": f"v{place.version}" if place.directories else "none",
            "processors": held_by(place.directories),
            "cgroup_directories": " ".join(str(root) for root in place.roots()),
        },
        takes=TAKES.get(program.name, Takes()) if program is not None else Takes(),
    )


async def _version(program: Program) -> str:
    """The first line of ``--version``; empty if it does not tell."""
    try:
        with anyio.fail_after(DEADLINE):
            told = await anyio.run_process([program.path, "--version"], check=False)
    except (OSError, TimeoutError):
        return ""
    return next(iter(told.stdout.decode("utf-8", "replace").splitlines()), "")


async def _try(runtime: Owned) -> Missing | None:
    """Why the sandbox did not come up; None if its guest answered."""
    ident = "proof-" + os.urandom(6).hex()
    root = runtime.owner.dir / f"oci-root-{ident}"
    root.mkdir(mode=0o755)
    spec = SandboxSpec(id=ident, template="proof", limits=Limits(disk=1 << 20, inodes=100))
    template = Template(digest="proof", name="proof", layers=(Layer("/", str(root)),), env={})
    try:
        handle = await runtime.create(spec, template)
        try:
            with anyio.fail_after(DEADLINE):
                await runtime.start(handle)
                why = await _greet(runtime, handle)
                return Missing(*explain(why)) if why else None
        finally:
            with anyio.CancelScope(shield=True):
                await runtime.destroy(handle)
    except TimeoutError:
        return Missing(f"its guest did not answer within {DEADLINE:g} s")
    except Refused as refused:
        return Missing.of(refused.missing[0])
    except (ProofboxError, OSError, frames.WireError) as error:
        return Missing(*explain(str(error)))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _greet(runtime: Owned, handle: Handle) -> str:
    """Sends the first message and reads the answer."""
    reader = frames.FrameDecoder("guest")
    with await runtime.connect(handle) as channel:
        await anyio.wait_writable(channel)
        with suppress(BrokenPipeError):  # it has ended; what it said is still to be read
            channel.send(frames.encode_frame(frames.HELLO, 0, HOST_HELLO_LAYOUT.encode(HostHello())))
        while True:
            await anyio.wait_readable(channel)
            data = channel.recv(frames.MAX_PAYLOAD)
            if not data:
                return "it ended before its guest answered"
            for frame in reader.feed(data):
                if frame.type != frames.FATAL:
                    return ""
                return FATAL_LAYOUT.decode(frame.payload).message.decode("utf-8", "replace")
