"""crun, runc, runsc and others. What they get is prepared by our own program, so that nothing of it shows on the host.

``proofbox-guest oci-enter`` (guest/ocienter.h) is our child: it makes a mount namespace with the template
below a size-limited layer, joins the sandbox's cgroups, and runs the OCI runtime inside a PID namespace of its own. It
dies with this process, and the kernel ends everything below it then. What could outlive a ``kill -9`` is a bundle
directory and empty cgroups, both named by the owner.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from proofbox.errors import CreateFailed, ProofboxError, Refused, SandboxLost
from proofbox.host import cgroup, cgroup_apply
from proofbox.host.apart import called
from proofbox.host.cgroup_events import EventCounters
from proofbox.host.cgroup_room import claim_place
from proofbox.host.idmap import find_ids
from proofbox.host.idranges import give_range, take_range
from proofbox.host.layers import Written, discard
from proofbox.host.owner import Owner
from proofbox.host.pause import paused
from proofbox.host.processors import Processors
from proofbox.host.space import with_space
from proofbox.host.stage import stage
from proofbox.host.threads import inner_pid
from proofbox.kit.child import end_within, exited
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Below, Ended, Handle, Probe
from proofbox.runtimes.oci import bundle, programs, proof
from proofbox.runtimes.oci.bundle import PREFIX
from proofbox.runtimes.oci.config import Confined
from proofbox.runtimes.oci.programs import Program

STOP_PATIENCE: Final = 5.0
"""Seconds that our own program has to end the sandbox before it is killed, which ends the sandbox too."""


@dataclass(slots=True, eq=False)
class OciHandle:
    """One sandbox. ``base`` is its first id on the host, 0 without a range of its own; ``namespace`` the user namespace
    where its runtime runs, if that is not this process's own, else -1.
    """

    id: str
    spec: SandboxSpec
    template: Template
    program: Program
    directory: Path
    base: int
    namespace: int
    plan: cgroup.Plan
    near: socket.socket
    far: socket.socket | None
    status: socket.socket
    reporter: socket.socket | None
    """Its other end, on which our program hands out the writable layer."""
    affinity: tuple[int, ...] = ()
    """The processors that it is started on, where no control group sees to it; none for all."""
    shown: tuple[tuple[str, str], ...] = ()
    process: subprocess.Popen[bytes] | None = None
    connected: bool = False
    asked: bool = False
    below: tuple[Below, ...] = ()
    """What it is put over, with descriptors of its own until it starts."""
    layer: Written | None = None
    """What it writes over its template, once it was asked for."""
    image: str = ""
    """The directory of the saved sandbox that it goes on from."""
    saving: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while it stands still to be saved."""
    counters: EventCounters = field(init=False)

    def __post_init__(self) -> None:
        self.counters = EventCounters(self.plan)

    def written(self) -> Written | None:
        """What it writes over its template; None until that is mounted."""
        if self.layer is None and self.status.fileno() >= 0:
            try:
                _, ancillary, _, _ = self.status.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except OSError:  # nothing yet, or nobody is left who could send it
                return None
            for _, _, descriptor in ancillary:
                self.layer = Written(int.from_bytes(descriptor, sys.byteorder), self.base)
        return self.layer

    def close_far(self) -> None:
        """Lets go of what only our program needs."""
        for each in (self.far, self.reporter):
            if each is not None:
                each.close()
        self.far = self.reporter = None
        for below in self.below:
            if below.mount >= 0:
                discard(below.mount)
        self.below = ()

    def close(self) -> None:
        """Lets all of its descriptors go. Idempotent."""
        self.close_far()
        self.written()  # what was sent and never asked for is ours to let go of as well
        self.near.close()
        self.status.close()
        self.counters.close()
        if self.layer is not None:
            self.layer.release()
            self.layer = None


def _counted(mine: OciHandle) -> Usage:
    """What its cgroups say. Of a kernel of its own they count what that is made of, not the processes in it."""
    counted = cgroup_apply.usage(mine.plan) if mine.plan.directories else Usage()
    if mine.program.make.own_kernel:
        return msgspec.structs.replace(counted, processes_now=None, process_denials=None)
    return counted


class _Read:
    """What is read of a sandbox from outside, while it lives and until it is destroyed."""

    __slots__ = ()
    _processors: Processors

    async def usage(self, handle: Handle) -> Usage:
        """Counters of the sandbox's cgroups; of the disk what its layer holds."""
        mine = handle_of(handle)
        counted = _counted(mine)
        layer = mine.written()
        counted = with_space(counted, None if layer is None else layer.descriptor)
        held = self._processors.held(mine.id)
        return msgspec.structs.replace(counted, processors=held) if held else counted

    def events(self, handle: Handle) -> tuple[int | None, int | None]:
        """Two counters of its cgroups, from files that are held open."""
        mine = handle_of(handle)
        kills, denials = mine.counters.read()
        return kills, None if mine.program.make.own_kernel else denials

    def observe(self, handle: Handle) -> tuple[Sequence[int], Usage]:
        """The members of its cgroups, or the descendants of our program."""
        mine = handle_of(handle)
        if mine.process is None or mine.process.returncode is not None:
            return (), Usage()
        return cgroup_apply.inhabitants(mine.plan, mine.process.pid), _counted(mine)

    def kernel_process(self, handle: Handle) -> int:
        """gVisor's, among these: by the name that runsc starts it by."""
        return called(self.observe(handle)[0], "runsc-sandbox")

    def layer(self, handle: Handle) -> Written:
        """Our program has sent it."""
        mine = handle_of(handle)
        layer = mine.written()
        if layer is None:
            raise SandboxLost(f"sandbox {mine.id} has no writable layer: it never came up, or was destroyed", "layer")
        return layer

    def paused(self, handle: Handle) -> AbstractAsyncContextManager[None]:
        """The OCI runtime and our init too, where they are in its group."""
        mine = handle_of(handle)
        return paused(mine.plan, lambda: self.observe(mine)[0], lambda: _guest(self.observe(mine)[0]))


class _Recalled:
    """What its probe rests on, for who keeps the answer."""

    binary: str | None
    level: Level
    _program: Program | None

    def rests_on(self) -> Sequence[str]:
        """The program."""
        path = programs.path_of(self.binary)
        return () if path is None else (os.path.realpath(path),)

    def recall(self, probe: Probe) -> None:
        """The platform that was found to work."""
        self._program = programs.recalled(probe.facts)
        self.level = probe.level


@dataclass(slots=True)
class OciRuntime(_Read, _Recalled):
    """See the module. ``binary`` is a name of ``programs.MAKES`` or an absolute path; None takes crun, or else runc.

    ``level`` is what it may reach until ``probe`` has found what it does reach here.
    """

    owner: Owner
    binary: str | None = None
    level: Level = field(init=False)
    name: str = field(init=False)
    _program: Program | None = field(init=False, default=None)
    _place: cgroup.Place = field(init=False, default=cgroup.NOWHERE)
    _groups: tuple[str, ...] | None = field(init=False, default=None)
    _confined: Confined | None = field(init=False, default=None)
    _processors: Processors = field(init=False)

    def __post_init__(self) -> None:
        programs.check_name(self.binary)
        by_path = self.binary is not None and os.path.isabs(self.binary)
        self.name = f"oci:{self.binary}" if by_path else self.binary or "oci"
        self.level = "user-kernel" if by_path else programs.MAKES[self.binary or "crun"].level
        self._place = claim_place()
        self._processors = Processors(self._counted(self.owner))

    async def probe(self) -> Probe:
        """Runs one real sandbox, for some seconds at most: nothing else proves that the kernel lets it."""
        found = await anyio.to_thread.run_sync(programs.find_program, self.binary)
        probe, self._program = await proof.probe(self, found, self._place)
        self.level = probe.level
        return probe

    async def create(self, spec: SandboxSpec, template: Template) -> OciHandle:
        """Bundle, cgroups and channel."""
        return await self.create_above(spec, template, ())

    async def create_above(self, spec: SandboxSpec, template: Template, below: Sequence[Below]) -> OciHandle:
        """As ``create``."""
        if self._program is None:
            self._program = await anyio.to_thread.run_sync(programs.find_program, self.binary)
        if self._program is None:
            raise Refused(f"runtime {self.name!r}", tuple(str(item) for item in proof.no_program(self.binary)))
        return await self._make(spec, template, below, self._program)

    def _refuse(self, spec: SandboxSpec, program: Program) -> None:
        """What would end gVisor, and look like a fault of the infrastructure."""
        if program.make.own_kernel and (spec.limits.processes or 0) > programs.GVISOR_TASKS:
            asked = f"limit processes of {spec.limits.processes}: gVisor lives with {programs.GVISOR_TASKS} at most"
            raise Refused(f"sandbox {spec.id}", (asked,))

    async def create_proof(self, spec: SandboxSpec, template: Template, program: Program) -> OciHandle:
        """As ``create``, at that program, and the guest first tries the kernel inside."""
        return await self._make(spec, template, (), program, proof=True)

    async def _make(
        self, spec: SandboxSpec, template: Template, below: Sequence[Below], program: Program, *, proof: bool = False
    ) -> OciHandle:
        self._refuse(spec, program)
        ids = await anyio.to_thread.run_sync(find_ids)
        directory = self.owner.dir / f"{PREFIX}{spec.id}"
        if directory.exists():
            raise CreateFailed(f"sandbox {spec.id}: {directory} exists; another sandbox has that id", "bundle")
        chosen = self._choose(spec)
        plan = self._plan(spec, program, chosen)
        base = 0
        try:
            base = take_range(self.owner.id, spec.id) if ids.full else 0
            identity = bundle.identity(directory, program, spec, template)
            shown = (*self._processors.shown(chosen), *identity)
            bundle.make(directory, spec, ids.map_of(base), self._confinement(), shown, program, proof=proof)
            self._prepare_groups()
            cgroup_apply.apply(plan, 0)
            sockets = _sockets()
        except (OSError, ProofboxError) as error:
            give_range(base, self.owner.id, spec.id)
            self._processors.give_back(spec.id)
            cgroup_apply.remove(plan.directories)
            shutil.rmtree(directory, ignore_errors=True)
            if isinstance(error, ProofboxError):
                raise
            raise CreateFailed(f"sandbox {spec.id}: {directory}: {error}", "bundle") from error
        affinity = chosen if "cpuset" not in plan.by_controller else ()
        placed = (directory, base, ids.namespace, plan)
        handle = OciHandle(spec.id, spec, template, program, *placed, *sockets, affinity, shown)
        handle.below = tuple(replace(each, mount=os.dup(each.mount)) if each.mount >= 0 else each for each in below)
        return handle

    def _choose(self, spec: SandboxSpec) -> tuple[int, ...]:
        """The processors of a sandbox whose limit leaves it fewer than there are; none for all."""
        chosen = self._processors.take(spec.id, spec.limits.cpus)
        if chosen:
            try:
                self._prepare_groups()
                self._place = cgroup_apply.split_processors(self._place, self.owner.id)
            except ProofboxError:
                self._processors.give_back(spec.id)
                raise
        return chosen

    def _plan(self, spec: SandboxSpec, program: Program, chosen: Sequence[int]) -> cgroup.Plan:
        limits = spec.limits
        if limits.processes is not None:
            limits = msgspec.structs.replace(limits, processes=program.tasks(limits.processes))
        plan = cgroup.plan_group(self._place, self.owner.id, spec.id, limits, chosen)
        # Our program joins by itself, before anything that the sandbox brings runs.
        return replace(plan, values=tuple(item for item in plan.values if item[1]))

    def _prepare_groups(self) -> None:
        if not cgroup_apply.stand(self._groups):
            self._groups = cgroup_apply.begin(self._record(self.owner), self._place, self.owner.id)

    def _record(self, owner: Owner) -> Path:
        """Says where the owner's control groups are."""
        return owner.dir / f"groups-{self._kind()}"

    def _counted(self, owner: Owner) -> Path:
        """From there sandboxes with a limit on processors are shown how many they have."""
        return owner.dir / f"processors-{self._kind()}"

    def _kind(self) -> str:
        """One given by its path leaves what ``oci`` leaves, so that it is swept with it."""
        return self.name.partition(":")[0]

    def _confinement(self) -> Confined:
        if self._confined is None:
            self._confined = bundle.confined()
        return self._confined

    async def start(self, handle: Handle) -> None:
        """Starts our program. What fails from there on until the guest runs comes as its last word on the channel."""
        mine = handle_of(handle)
        if mine.far is None or mine.reporter is None:
            raise CreateFailed(f"sandbox {mine.id} cannot be started twice", "start")
        try:
            words = bundle.command(mine, mine.far.fileno(), mine.reporter.fileno())
            passed = [mine.far.fileno(), mine.reporter.fileno(), *([] if mine.namespace < 0 else [mine.namespace])]
            passed += [each.mount for each in mine.below if each.mount >= 0]
            mine.process = _spawn(words, passed, mine.affinity)
        except OSError as error:
            raise CreateFailed(f"sandbox {mine.id}: start {words[0]}: {error.strerror}", "start") from error
        finally:
            mine.close_far()

    async def connect(self, handle: Handle) -> socket.socket:
        """The near end of the socket pair."""
        mine = handle_of(handle)
        if mine.connected:
            raise CreateFailed(f"sandbox {mine.id} cannot be connected twice", "connect")
        mine.connected = True
        return mine.near.dup()

    async def wait(self, handle: Handle) -> Ended:
        """Until our program has ended; it ends after the last process of the sandbox."""
        mine = handle_of(handle)
        status = None if mine.process is None else await exited(mine.process)
        _, denials = mine.counters.read()
        crowded = mine.program.make.own_kernel and bool(denials)
        return Ended(status, oom=bool(cgroup_apply.oom_kills(mine.plan)), asked=mine.asked, crowded=crowded)

    async def stop(self, handle: Handle) -> None:
        """Has our program end the sandbox; it waits for all of its processes."""
        mine = handle_of(handle)
        mine.asked = True
        mine.close_far()
        process = mine.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        await end_within(process, STOP_PATIENCE)

    async def destroy(self, handle: Handle) -> None:
        """Ends it and removes bundle and cgroups."""
        mine = handle_of(handle)
        await self.stop(mine)
        mine.close()
        while not cgroup_apply.remove(mine.plan.directories):
            for group in mine.plan.directories:
                cgroup_apply.kill(group)
            await anyio.sleep(0.002)
        shutil.rmtree(mine.directory, ignore_errors=True)
        give_range(mine.base, self.owner.id, mine.id)
        self._processors.give_back(mine.id)

    async def adopt(self, owner: Owner) -> tuple[Handle, ...]:
        """None: a sandbox ends with its owner."""
        return ()

    async def sweep(self, owner: Owner) -> int:
        """Removes bundles and cgroups of a dead owner."""
        groups = (self._record(owner), self._place, owner.id)
        swept = await anyio.to_thread.run_sync(cgroup_apply.sweep_remembered, *groups)
        found = list(owner.dir.glob(f"{PREFIX}*"))
        for directory in found:
            await anyio.to_thread.run_sync(_remover(directory))
        return swept + len(found) + Processors(self._counted(owner)).remove()

    async def close(self) -> None:
        """Removes the owner's own cgroup directories, unless another runtime of this process still needs them."""
        if self._groups is not None:
            cgroup_apply.remove(reversed(self._groups))
            self._record(self.owner).unlink(missing_ok=True)
            self._groups = None
            self._processors.remove()


def _remover(directory: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(directory, ignore_errors=True)


def handle_of(handle: Handle) -> OciHandle:
    """As one of this runtime's own."""
    assert isinstance(handle, OciHandle)  # tells the type checker; a runtime gets its own handles
    return handle


def _spawn(words: list[str], passed: Sequence[int], affinity: Sequence[int]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is not for it. What this thread keeps to when it forks, the sandbox inherits."""
    before = os.sched_getaffinity(0)
    if affinity:
        os.sched_setaffinity(0, affinity)
    try:
        return _popen(words, passed)
    finally:
        if affinity:
            os.sched_setaffinity(0, before)


def _popen(words: list[str], passed: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        # Where runtimes put a copy of themselves for a moment; by default that is the host's /tmp.
        env={"_LIBCONTAINER_STATEDIR": f"{stage()}/state"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=passed,
        start_new_session=True,
    )


def _sockets() -> tuple[socket.socket, socket.socket, socket.socket, socket.socket]:
    """The channel and the status socket, our end and the other one of each."""
    channel, guest = socket.socketpair()
    try:
        status, reporter = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        channel.close()
        guest.close()
        raise
    channel.setblocking(False)
    status.setblocking(False)
    return channel, guest, status, reporter


def _guest(pids: Sequence[int]) -> int:
    """Of a sandbox's processes the guest: the first one of a PID namespace in that of our init. 0 if it is gone."""
    firsts = sorted((depth, pid) for pid in pids for depth, number in (inner_pid(pid),) if number == 1)
    outermost = firsts[0][0] if firsts else 0
    return next((pid for depth, pid in firsts if depth == outermost + 1), 0)
