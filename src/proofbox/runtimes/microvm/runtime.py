"""The runtime: a machine is booted for each sandbox, and the launcher in it makes the sandbox as ``native`` would.

What a machine leaves when we are killed: a directory in the owner's, and control groups. Its processes die with us.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec

from proofbox.errors import CreateFailed, Refused, SandboxLost
from proofbox.host import cgroup, cgroup_apply
from proofbox.host.apart import called
from proofbox.host.cgroup_room import claim_place
from proofbox.host.idmap import find_ids
from proofbox.host.idranges import give_range, take_range
from proofbox.host.owner import Owner
from proofbox.host.threads import descendants
from proofbox.model.limits import LimitKind, Limits
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Ended, Handle, Probe
from proofbox.runtimes.microvm import image, inside, probe, vmm
from proofbox.runtimes.microvm.copies import Copying
from proofbox.runtimes.microvm.handle import MicrovmHandle, handle_of, is_speed
from proofbox.runtimes.microvm.initramfs import make_initramfs
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.parts import Found, Parts, confined, find, find_parts
from proofbox.runtimes.microvm.ports import open_ports
from proofbox.runtimes.microvm.warm import Warm

T = TypeVar("T")

PREFIX: Final = "machine-"
"""The directory of one sandbox, in the owner's."""
GROUPS: Final = "groups-microvm"
"""The file in the owner's directory that says where its control groups are."""
USAGE_S: Final = 5.0
"""How long the machine's own counters are waited for."""
ENDING_S: Final = 20.0
_PAUSE_S: Final = 0.002

ALWAYS: Final[frozenset[LimitKind]] = frozenset(
    {
        *("memory", "processes", "disk", "inodes", "open_files", "process_memory"),
        *("wall", "idle", "command_wall", "output"),
    }
)
"""Enforced on every host: by what the machine has, by its own kernel, and by the guest for each command."""
FROM_OUTSIDE: Final[frozenset[LimitKind]] = frozenset({"cpus", "cpu_time"})
"""Enforced where this host has control groups for it, over all that the machine takes of its processors."""


class _Looks(Protocol):
    def _look(self, *, anew: bool) -> Found: ...


class _Seen:
    """What is seen on this host: what its probe, which boots a machine, rests on; the process of a machine."""

    __slots__ = ()

    def rests_on(self: _Looks) -> tuple[str, ...]:
        """QEMU with its libraries and firmware, the kernel and its modules, the device of hardware support, looked for
        anew; nothing where something of it is missing.
        """
        try:
            return self._look(anew=True).files
        except Refused:
            return ()

    def recall(self, probe: Probe) -> None:
        """Nothing of it is needed to make a sandbox: which accelerator works here is known by itself."""

    def observe(self, handle: Handle) -> tuple[Sequence[int], Usage]:
        """QEMU and what is around it: its threads run when the machine's processors do."""
        mine = handle_of(handle)
        if mine.machine is None or mine.machine.process.returncode is not None:
            return (), Usage()
        return descendants(mine.machine.pid), _counted(mine)

    def kernel_process(self, handle: Handle) -> int:
        """QEMU."""
        machine = handle_of(handle).machine
        return 0 if machine is None else called(self.observe(handle)[0], machine.qemu)


@dataclass(slots=True)
class MicrovmRuntime(Copying, _Seen):
    """See the module. Safe to use from several event loops, one after the other."""

    owner: Owner
    name: str = "microvm"
    level: Level = "vm"
    boots: bool = False
    """Each machine boots, and none goes on from a saved state."""
    _place: cgroup.Place = field(init=False, default=cgroup.NOWHERE)
    _groups: tuple[str, ...] | None = field(init=False, default=None)
    _found: Found | None = field(init=False, default=None)
    _parts: Parts | None = field(init=False, default=None)
    _warm: Warm = field(init=False, default_factory=Warm)

    def __post_init__(self) -> None:
        self._place = claim_place()

    @property
    def enforces(self) -> frozenset[LimitKind]:
        """The limits that this host lets it enforce."""
        return ALWAYS | (FROM_OUTSIDE & self._place.enforces())

    async def probe(self) -> Probe:
        """Boots one machine with nothing in it: nothing else proves that this host can."""
        return await probe.probe(self, self.owner, self._place, self.enforces)

    async def parts(self) -> Parts:
        """What machines are started from, found once. Raises ``Refused`` with all that is missing."""
        if self._parts is None:
            self._parts = await find_parts(await anyio.to_thread.run_sync(self._look))
        return self._parts

    def _look(self, *, anew: bool = False) -> Found:
        """What of that is found without a machine, see ``parts.find``: once, until somebody wants it ``anew``."""
        found, parts = self._found, self._parts
        if found is None or anew:
            self._found = self._parts = None
            self._found = find()
            if self._found == found:
                self._parts = parts
            found = self._found
        return found

    async def create(self, spec: SandboxSpec, template: Template) -> MicrovmHandle:
        """Boots a machine, some tenths of a second with hardware support and seconds without, and has the sandbox made.

        The first sandbox of a template has its image made: that takes as long as to copy the template. Cancelled
        meanwhile, the image is made all the same, for the next one. Otherwise as the contract says.
        """
        self._refuse(spec)
        parts = await self.parts()
        handle = await anyio.to_thread.run_sync(self._prepare, spec, parts)
        try:
            await self._start(handle, spec, template, parts)
            await self._launch(handle, spec, template, parts)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(handle)
            raise
        return handle

    def _refuse(self, spec: SandboxSpec) -> None:
        able = self.enforces
        items = [
            f"limit {kind}: not enforced by {self.name} on this host"
            for kind in spec.limits.asked()
            if kind not in able
        ]
        if spec.network != "none":
            items.append(f"network {spec.network!r}: a machine has no network card")
        if items:
            raise Refused(f"sandbox {spec.id}", tuple(items))

    def _prepare(self, spec: SandboxSpec, parts: Parts) -> MicrovmHandle:
        """Its directory and control groups. Raises ``CreateFailed``; nothing is left then."""
        directory = self.owner.dir / f"{PREFIX}{spec.id}"
        ids = find_ids()
        outer = Limits(
            # Twice: who writes a page first that was empty when the machine was saved pays for the empty one as well,
            # which the kernel makes in the state's file. All that go on from this state share that one then.
            memory=2 * inside.guest_memory(spec.limits) + vmm.OVERHEAD[parts.accelerator],
            processes=vmm.OWN_TASKS,
            cpus=spec.limits.cpus,
        )
        plan = cgroup.plan_group(self._place, self.owner.id, spec.id, outer)
        # The machine joins by itself; and it boots at full speed.
        own = replace(plan, values=tuple(each for each in plan.values if each[1] and not is_speed(each[0])))
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise CreateFailed(f"sandbox {spec.id}: {directory}: {error.strerror}", "directory") from error
        base = 0
        try:
            base = take_range(self.owner.id, spec.id) if ids.full else 0
            if not cgroup_apply.stand(self._groups):
                self._groups = cgroup_apply.begin(self.owner.dir / GROUPS, self._place, self.owner.id)
            cgroup_apply.apply(own, 0)
            handle = MicrovmHandle(spec.id, directory, plan, base, *open_ports(f"sandbox {spec.id}"))
        except BaseException:
            give_range(base, self.owner.id, spec.id)
            cgroup_apply.remove(plan.directories)
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return handle

    async def _start(self, handle: MicrovmHandle, spec: SandboxSpec, template: Template, parts: Parts) -> None:
        """Its images and its process."""
        made = [await _image(handle, template)]
        if spec.volumes:
            sources = [volume.source for volume in spec.volumes]
            made.append(await anyio.to_thread.run_sync(handle.own_image, sources))
        machine = Machine(
            kernel=parts.kernel.image,
            initramfs=await _in_thread(lambda: make_initramfs(parts.kernel, image.machines())),
            cmdline=inside.command_line(parts.accelerator),
            memory=inside.guest_memory(spec.limits),
            processors=inside.guest_processors(spec.limits, parts.accelerator),
            images=tuple(made),
            accelerator=parts.accelerator,
            machine=parts.qemu.board,
        )
        state = None if self.boots else await self._warm.state(machine, parts)
        where = confined(handle.plan.directories, handle.base)
        try:
            handle.machine = vmm.start(parts.qemu, machine, where, handle.far, state=state)
        finally:
            handle.close_far()
        handle.shape = machine
        handle.control.waiting = state is not None  # it was, when it was saved

    async def _launch(self, handle: MicrovmHandle, spec: SandboxSpec, template: Template, parts: Parts) -> None:
        """Waits for its init, and for the sandbox to stand."""
        control = handle.control
        try:
            await handle.until(lambda: control.waiting)
            await control.send(*inside.launch_records(spec, template, root_overlays=parts.marked_by_root))
            await handle.until(lambda: control.ready is not None)
        except anyio.BrokenResourceError as error:
            raise CreateFailed(f"sandbox {spec.id}: its machine ended while it was made", "machine") from error
        handle.settle()

    async def start(self, handle: Handle) -> None:
        """Nothing more to do: the guest runs nothing until it gets the client's first message."""
        mine = handle_of(handle)
        if mine.started:
            raise CreateFailed(f"sandbox {mine.id} cannot be started twice", "start")
        mine.started = True

    async def connect(self, handle: Handle) -> socket.socket:
        """The end of its channel, which QEMU passes on to a port of the machine."""
        mine = handle_of(handle)
        if mine.connected:
            raise CreateFailed(f"sandbox {mine.id} cannot be connected twice", "connect")
        mine.connected = True
        return mine.channel.dup()

    async def wait(self, handle: Handle) -> Ended:
        """Until every process of the machine is gone. The status is the guest's, where the machine told it."""
        mine = handle_of(handle)
        status = None if mine.machine is None else await mine.machine.exited()
        await mine.control.drain()
        if mine.control.end is not None:
            status = mine.control.end.status
        return Ended(status, oom=bool(mine.control.counted.oom_kills), asked=mine.asked)

    async def usage(self, handle: Handle) -> Usage:
        """Processor time and memory of the machine's process, less what it took to boot; the rest by its own kernel.

        What its kernel counts (memory kills, refused forks, processes, disk) is told by its init, which no program of
        the sandbox reaches but by breaking that kernel. Where that is silent, the latest counters are told again.
        """
        mine = handle_of(handle)
        with anyio.move_on_after(USAGE_S):
            await mine.control.usage()
        return _counted(mine)

    async def stop(self, handle: Handle) -> None:
        """Ends the machine as a power failure would, and waits until its processes are gone."""
        mine = handle_of(handle)
        mine.asked = True
        mine.close_far()
        if mine.machine is not None:
            await mine.machine.stop()

    async def destroy(self, handle: Handle) -> None:
        """Ends it and removes its directory and its control groups."""
        mine = handle_of(handle)
        await self.stop(mine)
        mine.close()
        with anyio.move_on_after(ENDING_S) as late:
            while not cgroup_apply.remove(mine.plan.directories):
                for group in mine.plan.directories:
                    cgroup_apply.kill(group)
                await anyio.sleep(_PAUSE_S)
        await anyio.to_thread.run_sync(mine.own.close)
        shutil.rmtree(mine.directory, ignore_errors=True)
        give_range(mine.base, self.owner.id, mine.id)
        if late.cancelled_caught:
            raise SandboxLost(f"sandbox {mine.id}: its control groups {mine.plan.directories} stay busy", "host")

    async def adopt(self, owner: Owner) -> tuple[Handle, ...]:
        """None: a machine ends with its owner."""
        return ()

    async def sweep(self, owner: Owner) -> int:
        """Removes directories and control groups of a dead owner's machines."""
        groups = (owner.dir / GROUPS, self._place, owner.id)
        found = await anyio.to_thread.run_sync(cgroup_apply.sweep_remembered, *groups)
        directories = [*owner.dir.glob(f"{PREFIX}*"), *owner.dir.glob(probe.DIRECTORY)]
        for directory in directories:
            await _in_thread(partial(shutil.rmtree, directory, ignore_errors=True))
        return found + len(directories)

    async def close(self) -> None:
        """Removes the owner's own control groups, unless another runtime of this process still needs them."""
        self._warm.close()
        if self._groups is not None:
            cgroup_apply.remove(reversed(self._groups))
            (self.owner.dir / GROUPS).unlink(missing_ok=True)
            self._groups = None


def _counted(mine: MicrovmHandle) -> Usage:
    """What the host counts now, and what the machine's own kernel did when it was asked last."""
    outside = cgroup_apply.usage(mine.plan) if mine.plan.directories else Usage()
    return msgspec.structs.replace(
        mine.control.counted,
        cpu_user=_since(outside.cpu_user, mine.booted.cpu_user),
        cpu_system=_since(outside.cpu_system, mine.booted.cpu_system),
        throttled=_since(outside.throttled, mine.booted.throttled),
        memory_peak=outside.memory_peak,
        memory_now=outside.memory_now,
        cpu_waits=_since(outside.cpu_waits, mine.booted.cpu_waits),
    )


def _since(now: float | None, before: float | None) -> float | None:
    return None if now is None else max(0.0, now - (before or 0.0))


async def _in_thread(function: Callable[[], T]) -> T:
    """What is made in it is whole or not there: cancelled, it goes on, and nobody waits."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True)


async def _image(handle: MicrovmHandle, template: Template) -> Path:
    """The template's, which the next sandbox of it finds, also if this one is cancelled. The probe's has no digest."""
    if template.digest:
        return await _in_thread(lambda: image.template_image(template))
    return await anyio.to_thread.run_sync(handle.own_image, [layer.source for layer in template.layers])
