"""Whether an OCI runtime works on this host, and how: by running a sandbox with nothing in it but the guest."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

import anyio
import anyio.to_thread

from proofbox.errors import ProofboxError, Refused
from proofbox.host.apart import NAMESPACES, first_of, read_apart
from proofbox.host.cgroup import Place
from proofbox.host.idmap import find_ids
from proofbox.host.layers import NO_MARKS, marked_by_root, takes_marks
from proofbox.host.owner import Owner
from proofbox.host.processors import CAN_WIDEN, held_by
from proofbox.host.remedies import explain
from proofbox.host.room import Takes
from proofbox.model.limits import LimitKind, Limits
from proofbox.model.spec import Level, SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtime.contract import CanObserve, Handle, Missing, Probe, Runtime
from proofbox.runtimes.oci import programs
from proofbox.runtimes.oci.programs import MAKES, Program
from proofbox.wire import frames
from proofbox.wire.guest import GUEST_HELLO_LAYOUT, HOST_HELLO_LAYOUT, HostHello, fatal_words

DEADLINE: Final = 15.0
"""Seconds for the proof; a cold start from a slow disk included."""

ALWAYS: Final[frozenset[LimitKind]] = frozenset(
    {"disk", "inodes", "open_files", "process_memory", "wall", "idle", "command_wall", "output"}
)

_NAMESPACES: Final = tuple((kind, 2 if kind in ("mnt", "pid") else 1) for kind in NAMESPACES)
"""Our own program has two of its own."""

TAKES: Final = {
    "crun": Takes(all_files=32, tasks=3, starting=4, namespaces=_NAMESPACES, memory=1 << 20, inodes=16),
    "runc": Takes(all_files=32, tasks=3, starting=24, namespaces=_NAMESPACES, memory=1 << 20, inodes=16),
    "runsc": Takes(
        all_files=200,
        tasks=40,
        per_command=6,
        starting=12,
        namespaces=tuple((kind, 3) for kind in NAMESPACES),
        memory=20 << 20,
        inodes=16,
    ),
}
"""``scripts/bench density``, rounded up: 3 descriptors here, 3 processes (5 with a command), 13 open files (23), 15
inodes; runsc 32 threads (37), 87 open files (160). What starts them is gone when they run.
"""
KERNEL_INSIDE: Final = "the kernel inside:"
"""What the guest's complaint begins with that the kernel is not what it needs (guest/main.c)."""
NEWER_RUNSC: Final = (
    "Debian 13's package runsc (0.0~20240729) or a newer release of gVisor, named by PROOFBOX_RUNSC=/path/to/runsc"
)
GVISOR_FILES: Final = 300
"""Open files that a program of gVisor may want: with 256 it was seen to end, without a word of why."""
DIFFERS: Final = {
    "files": "named pipes and sockets are in memory only, and not in what is kept of the sandbox; what is changed of a "
    "file by one of its names may not show by another",
    "attributes": "files have no extended attributes (user.*); nor are there O_TMPFILE and RENAME_EXCHANGE",
    "tmp": "/tmp is a mount of its own: to rename or link from there to elsewhere is EXDEV",
    "stopped": "while a program is stopped, the end of another one of its process group sends all of that SIGHUP",
    "times": "of a file whose times nobody set, those that are kept differ by a clock's tick from those seen inside",
    "volumes": "what the host changes in a volume later may not be seen",
    "guest": "all users see environment and descriptors of the first process, but nobody gets at its channel or memory",
    "first process": "root inside can kill the first process, and its own sandbox with it",
    "ids": "/proc/self/uid_map tells nothing of the ids outside",
    "status": "/proc/self/status has fewer lines, and of /proc/sys there is little",
    "sysvipc": "there is no /proc/sysvipc",
}
"""What is different in gVisor for programs inside."""
NOT_OF_GVISOR: Final[frozenset[LimitKind]] = frozenset({"command_cpu_time"})
"""Of its kernel's processor time nobody outside can tell which command it was for."""
OF_GVISOR: Final = (
    "memory: gVisor's kernel is one process of the host, so that reaching the limit may end the sandbox",
    "processes: gVisor refuses them by the limit; root inside can undo that, and ends the sandbox at some more",
    "disk: /dev is in memory and counts there, not as disk; only root inside can write to it",
    "command_cpu_time: outside, only the processor time of the whole sandbox is known",
    "system calls are filtered by gVisor's kernel and for it, with no filter of ours inside",
)
"""What is different there, said at every probe."""


class Owned(Runtime, Protocol):
    """A runtime that tells who it makes things for, and makes one sandbox to prove that a program works."""

    owner: Owner

    async def create_proof(self, spec: SandboxSpec, template: Template, program: Program) -> Handle: ...


def no_program(name: str | None) -> tuple[Missing, ...]:
    """What to install."""
    if name is not None and name not in MAKES:
        return (Missing(f"no program at {name}", "give the path of an OCI runtime"),)
    told = os.environ.get(programs.variable(name), "") if name else ""
    if name and told:
        remedy = "name one that can be run, or none, to have it looked for"
        return (Missing(f"{programs.variable(name)}={told} names no program that can be run", remedy),)
    if name == "runsc":
        return (Missing("no runsc on this host", f"apt install runsc on Debian 13; elsewhere {NEWER_RUNSC}"),)
    wanted = name or "crun or runc"
    return (Missing(f"no {wanted} on this host", f"apt install {name or 'crun'}"),)


async def probe(runtime: Owned, program: Program | None, place: Place) -> tuple[Probe, Program | None]:
    """The whole answer, and the program with the platform on which it works. Leaves nothing."""
    ids = await anyio.to_thread.run_sync(find_ids)
    missing: tuple[Missing, ...] = ()
    version = kernel = ""
    if program is None:
        missing = no_program(runtime.name.removeprefix("oci:") if runtime.name != "oci" else None)
    else:
        version = await anyio.to_thread.run_sync(programs.version, program.path)
        program, missing, kernel = await _choose(runtime, program)
    level = _level(program, kernel)
    own_kernel = level == "user-kernel"
    weaker = [*place.missing]
    if "cpu" in place.directories and "cpuset" not in place.directories:
        weaker.append(CAN_WIDEN)
    if not takes_marks() and not marked_by_root(ids):
        weaker.append(NO_MARKS)
    if not ids.users:
        weaker.append(f"one id inside: {ids.why_not}")
    if own_kernel:
        weaker += OF_GVISOR
    found = Probe(
        usable=not missing,
        level=level,
        enforces=(ALWAYS | place.enforces()) - (NOT_OF_GVISOR if own_kernel else frozenset()),
        networks=frozenset({"none", "host"}),
        users=ids.users,
        own_identity=program is not None and program.make.own_boot_id,
        fatal=frozenset({"memory"}) if own_kernel else frozenset(),
        differs=DIFFERS if own_kernel else {},
        missing=missing,
        notes=tuple(weaker),
        facts={
            "kernel": platform.release(),
            "program_version": version,
            "ids": ids.described(),
            "cgroup": f"v{place.version}" if place.directories else "none",
            "processors": held_by(place.directories),
            "cgroup_directories": " ".join(str(root) for root in place.roots()),
        }
        | ({} if program is None else program.facts())
        | ({"kernel_inside": kernel} if own_kernel else {}),
        takes=TAKES.get(program.name, Takes()) if program is not None else Takes(),
    )
    return found, program


def _level(program: Program | None, kernel: str) -> Level:
    """A kernel of its own is one that shows inside in place of this host's."""
    if program is None or not program.make.own_kernel:
        return "container"
    return "container" if kernel == _seen_here() else "user-kernel"


def _seen_here() -> str:
    return f"{platform.machine()} {platform.release()}"


async def _choose(runtime: Owned, program: Program) -> tuple[Program, tuple[Missing, ...], str]:
    """On the first platform that runs a sandbox; why none does; and the kernel that was seen inside.

    What the guest does not find in the kernel inside it finds on no other platform either.
    """
    tried: list[Missing] = []
    for name in program.make.platforms or ("",):
        candidate = replace(program, platform=name)
        try:
            kernel = await _try(runtime, candidate)
        except _Fails as fails:
            where = f"{program.path} on its platform {name}" if name else program.path
            remedy = fails.why.remedy or (_remedy() if program.name == "runsc" else "")
            tried.append(Missing(f"{where} cannot run a sandbox here: {fails.why.what}", remedy))
            if KERNEL_INSIDE in fails.why.what:
                break
        else:
            return candidate, (), kernel
    return program, tuple(tried), ""


def _remedy() -> str:
    """What may mend a runsc that does not say what it lacks."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < GVISOR_FILES:
        return f"ulimit -n 65536 (LimitNOFILE= at systemd): its programs may open {files} files only"
    if os.environ.get(programs.PLATFORM):
        return f"unset {programs.PLATFORM}, to have a platform chosen that works"
    return NEWER_RUNSC


class _Fails(Exception):
    """A sandbox did not come up."""

    def __init__(self, why: Missing) -> None:
        super().__init__(why.what)
        self.why = why


async def _try(runtime: Owned, program: Program) -> str:
    """Runs one sandbox: the kernel that its guest sees. Raises ``_Fails``. Whatever it started is gone afterwards."""
    ident = "proof-" + os.urandom(6).hex()
    root = runtime.owner.dir / f"oci-root-{ident}"
    root.mkdir(mode=0o755)
    spec = SandboxSpec(id=ident, template="proof", limits=Limits(disk=1 << 20, inodes=100, processes=100))
    template = Template(digest="proof", name="proof", layers=(Layer("/", str(root)),), env={})
    try:
        handle = await runtime.create_proof(spec, template, program)
        try:
            with anyio.fail_after(DEADLINE):
                await runtime.start(handle)
                return await _greet(runtime, handle, program)
        finally:
            with anyio.CancelScope(shield=True):
                await runtime.destroy(handle)
    except TimeoutError:
        raise _Fails(Missing(f"its guest did not answer within {DEADLINE:g} s")) from None
    except Refused as refused:
        raise _Fails(Missing.of(refused.missing[0])) from None
    except (ProofboxError, OSError, frames.WireError) as error:
        raise _Fails(Missing(*explain(str(error)))) from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _greet(runtime: Owned, handle: Handle, program: Program) -> str:
    """Sends the first message; the kernel in the answer. Raises ``_Fails``."""
    reader = frames.FrameDecoder("guest")
    with await runtime.connect(handle) as channel:
        await anyio.wait_writable(channel)
        with suppress(BrokenPipeError):  # it has ended; what it said is still to be read
            channel.send(frames.encode_frame(frames.HELLO, 0, HOST_HELLO_LAYOUT.encode(HostHello())))
        while True:
            await anyio.wait_readable(channel)
            try:
                data = channel.recv(frames.MAX_PAYLOAD)
            except ConnectionResetError:  # it ended before it read what we said; what it said comes after this
                continue
            if not data:
                raise _Fails(Missing("it ended before its guest answered"))
            for frame in reader.feed(data):
                if frame.type == frames.FATAL:
                    raise _Fails(Missing(*explain(fatal_words(frame.payload))))
                _check_confined(runtime, handle, program)
                return GUEST_HELLO_LAYOUT.decode(frame.payload).machine.decode("utf-8", "replace")


def _check_confined(runtime: Owned, handle: Handle, program: Program) -> None:
    """That a program of which nothing is known isolates at all: found on the guest, from outside. Raises ``_Fails``."""
    if program.name in MAKES or not isinstance(runtime, CanObserve):
        return
    apart = read_apart(first_of(runtime.observe(handle)[0]))
    shared = {"ipc", "mnt", "net", "pid", "uts"} & set(apart.shared)
    if shared or apart.seccomp != 2 or not apart.no_new_privs:
        what = f"namespaces shared: {', '.join(sorted(shared)) or 'none'}, filter of system calls: {apart.seccomp}"
        raise _Fails(Missing(f"a sandbox of it is none ({what}, no new privileges: {apart.no_new_privs})"))
