"""Makes and ends native sandboxes. What happens inside each is the launcher's work: ``guest/launch*.c``."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar

from proofbox.errors import CreateFailed, Refused, SandboxLost
from proofbox.host import cgroup_apply
from proofbox.host.cgroup import PROCESS_RESERVE, Place, advance_roots, plan_group
from proofbox.host.cgroup_room import claim_place
from proofbox.host.idmap import find_ids, no_range
from proofbox.host.layers import Written
from proofbox.host.owner import Owner
from proofbox.host.pause import paused
from proofbox.host.processors import Processors
from proofbox.host.space import with_space
from proofbox.model.limits import LimitKind, Limits
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Below, Ended, Handle, Probe
from proofbox.runtime.messages import DESTROY, KILL, encode_launch
from proofbox.runtimes.native.handle import NativeHandle
from proofbox.runtimes.native.launcher import Launcher
from proofbox.runtimes.native.probe import facts, notes, probe_host, remove_probe_directory

CREATE_S: Final = 30.0
"""A sandbox that does not stand after so long has failed: a source directory on a dead file system, most likely."""
END_S: Final = 20.0
"""A killed sandbox that is not gone after so long hangs in the kernel; the launcher goes on trying."""
_PAUSE_S: Final = 0.002

GROUPS: Final = "native-groups"
"""The file in the owner's directory that says where its control groups are."""
PROCESSORS: Final = "native-processors"
"""The directory there from which sandboxes with a limit on processors are shown how many they have."""

ENDING: Final = 64
"""Sandboxes that are ended at one time by one event loop: a thousand steps in one pass of it would hold up all others,
and each of them waits for the kernel most of the time."""

IDENTITY_PAGES: Final = 2
"""As guest/identity.c takes them, over the limit on disk."""

_ending: RunVar[anyio.Semaphore] = RunVar("proofbox_native_ending")

ALWAYS: Final[frozenset[LimitKind]] = frozenset(
    {"disk", "inodes", "open_files", "process_memory", "wall", "idle", "command_wall", "output"}
)
"""Enforced on every host: by the writable layer's own file system, and by the guest for each command."""


class _Read:
    """What is read of a sandbox from outside, while it lives and until it is destroyed."""

    __slots__ = ()
    _processors: Processors

    async def usage(self, handle: Handle) -> Usage:
        """The counters of its control groups, and what its writable layer holds."""
        mine = _of(handle)
        layer = None if mine.layer is None else mine.layer.descriptor
        counted = with_space(cgroup_apply.usage(mine.plan), layer, mine.ours)
        held = self._processors.held(mine.id)
        return msgspec.structs.replace(counted, processors=held) if held else counted

    def events(self, handle: Handle) -> tuple[int | None, int | None]:
        """Two of these counters, from files that are held open."""
        return _of(handle).counters.read()

    def observe(self, handle: Handle) -> tuple[Sequence[int], Usage]:
        """The members of its control groups, or the descendants of its init."""
        mine = _of(handle)
        if mine.over:
            return (), Usage()
        return cgroup_apply.inhabitants(mine.plan, mine.pid), cgroup_apply.usage(mine.plan)

    def layer(self, handle: Handle) -> Written:
        """It came with the word that the sandbox is ready."""
        mine = _of(handle)
        if mine.layer is None:
            raise SandboxLost(f"sandbox {mine.id} has no writable layer: it never came up, or was destroyed", "layer")
        return mine.layer

    def paused(self, handle: Handle) -> AbstractAsyncContextManager[None]:
        """Its guest too: what asks something of it meanwhile waits."""
        mine = _of(handle)
        return paused(mine.plan, lambda: () if mine.over else self.observe(mine)[0], lambda: mine.pid)


class NativeRuntime(_Read):
    """See the package. Safe to use from several event loops, one after the other or in several threads."""

    name = "native"
    level: Level = "container"

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._place: Place = claim_place()
        self._processors = Processors(owner.dir / PROCESSORS)
        # Without ranges of ids the kernel's limit for each user is made one for the whole sandbox.
        self._enforces: frozenset[LimitKind] = (
            ALWAYS | self._place.enforces() | ({"processes"} if no_range() else frozenset())
        )
        self._allowed: Limits | None = None
        self._launcher: Launcher | None = None
        self._starting = threading.Lock()

    async def probe(self) -> Probe:
        """Runs one sandbox with nothing in it, through every step."""
        before = self._place
        ids = await anyio.to_thread.run_sync(find_ids)
        probe = await probe_host(self, self._owner, ids, before, self._enforces)
        if self._place is not before:  # the sandbox was the first to ask for processors of its own
            probe = replace(probe, notes=notes(ids, self._place), facts=facts(ids, self._place))
        return probe

    async def create(self, spec: SandboxSpec, template: Template) -> NativeHandle:
        """The sandbox with its guest, which waits for the first message. About 1.5 ms.

        Raises ``CreateFailed`` with the step that failed, ``Refused`` for a limit that this host cannot enforce. On
        failure and on cancellation everything that was made is removed before this returns.
        """
        return await self.create_above(spec, template, ())

    async def create_above(self, spec: SandboxSpec, template: Template, below: Sequence[Below]) -> NativeHandle:
        """As ``create``."""
        self._refuse_unenforced(spec)
        try:
            return await self._make(spec, template, below)
        except BaseException:
            self._processors.give_back(spec.id)
            raise

    async def _make(self, spec: SandboxSpec, template: Template, below: Sequence[Below]) -> NativeHandle:
        handle, message, far = await self._prepare(spec, template, below)
        mounts = [each.mount for each in below if each.mount >= 0]
        try:
            with far[0], far[1]:
                await handle.launcher.send(message, [far[0].fileno(), far[1].fileno(), *mounts])
            await handle.until(lambda: handle.ready or bool(handle.failure) or handle.over, CREATE_S)
            if not handle.ready or handle.over:
                reason = handle.failure or _unready(handle)
                raise CreateFailed(f"sandbox {spec.id}: {reason}", reason.split(":")[0])
            if handle.affinity:
                # Its guest has started nothing yet, and all that it will start inherits this.
                os.sched_setaffinity(handle.pid, handle.affinity)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(handle)
            raise
        return handle

    async def start(self, handle: Handle) -> None:
        """Nothing more to do: the guest runs nothing until it gets the client's first message."""
        mine = _of(handle)
        if mine.started or mine.over:
            raise CreateFailed(f"sandbox {mine.id} {'has ended' if mine.over else 'cannot be started twice'}", "start")
        mine.started = True

    async def connect(self, handle: Handle) -> socket.socket:
        """Our end of the socket pair whose other end the guest has had from its birth."""
        mine = _of(handle)
        if mine.channel is None:
            raise CreateFailed(f"sandbox {mine.id} cannot be connected twice", "connect")
        channel, mine.channel = mine.channel, None
        return channel

    async def wait(self, handle: Handle) -> Ended:
        """Until init of its PID namespace was reaped: the kernel lets that happen when all others are gone."""
        mine = _of(handle)
        await mine.until(lambda: mine.over)
        if mine.lost:
            await _orphans_gone(mine)
        self._note_oom(mine)
        return Ended(mine.end, oom=mine.oom, asked=mine.asked)

    async def stop(self, handle: Handle) -> None:
        """Kills init of its PID namespace, and the kernel all others with it."""
        mine = _of(handle)
        mine.asked = True
        _order(mine, KILL)
        await self._ends(mine, lambda: mine.over)
        if mine.lost:
            await _orphans_gone(mine)

    async def destroy(self, handle: Handle) -> None:
        """Ends it and removes its control groups. Its writable layer goes with its last process.

        Raises ``SandboxLost`` if the kernel does not end it in time; the launcher goes on trying then.
        """
        mine = _of(handle)
        if mine.channel is not None:
            mine.channel.close()
            mine.channel = None
        if mine.status.fileno() < 0:
            return
        mine.asked = True
        async with _turn():
            if mine.waiting:  # who asks only after this is told that it was asked for
                self._note_oom(mine)
            _order(mine, DESTROY)
            await self._ends(mine, lambda: mine.removed or mine.lost)
        if mine.lost:
            await _orphans_gone(mine)
            await _remove_groups(mine)
        mine.close()
        self._processors.give_back(mine.id)

    async def adopt(self, owner: Owner) -> tuple[Handle, ...]:
        """None: a sandbox ends with its owner."""
        return ()

    async def sweep(self, owner: Owner) -> int:
        """Removes the control groups of a dead owner, and ends what is still in them."""
        groups = (owner.dir / GROUPS, self._place, owner.id)
        found = await anyio.to_thread.run_sync(cgroup_apply.sweep_remembered, *groups)
        return found + remove_probe_directory(owner) + Processors(owner.dir / PROCESSORS).remove()

    async def close(self) -> None:
        """Ends the launcher."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await anyio.to_thread.run_sync(launcher.close)
            if launcher.client == os.getpid():
                (self._owner.dir / GROUPS).unlink(missing_ok=True)
                self._processors.remove()

    def _refuse_unenforced(self, spec: SandboxSpec) -> None:
        if spec.limits is self._allowed:  # an immutable value, and the latest one that passed
            return
        beyond = [kind for kind in spec.limits.asked() if kind not in self._enforces]
        if beyond:
            why = "; ".join(self._place.missing) or "no such controller"
            raise Refused(
                f"sandbox {spec.id}", tuple(f"limit {kind}: not enforced on this host ({why})" for kind in beyond)
            )
        self._allowed = spec.limits

    async def _prepare(
        self, spec: SandboxSpec, template: Template, below: Sequence[Below]
    ) -> tuple[NativeHandle, bytes, tuple[socket.socket, socket.socket]]:
        launcher = self._launcher
        if launcher is None or not launcher.usable():
            launcher = await anyio.to_thread.run_sync(self._start_launcher)
        chosen, shown = self._chosen(spec)
        plan = plan_group(self._place, self._owner.id, spec.id, spec.limits, chosen)
        processes = None
        if spec.limits.processes is not None and "pids" not in plan.by_controller:
            processes = spec.limits.processes + PROCESS_RESERVE
        message = encode_launch(spec, template, plan, processes=processes, shown=shown, below=below)
        channel, guest, status, reporter = _sockets(spec.id)
        channel.setblocking(False)
        status.setblocking(False)
        affinity = chosen if "cpuset" not in plan.by_controller else ()
        ours = IDENTITY_PAGES if spec.machine_id and spec.boot_id else 0
        return NativeHandle(spec.id, plan, launcher, status, channel, affinity, ours), message, (guest, reporter)

    def _chosen(self, spec: SandboxSpec) -> tuple[tuple[int, ...], tuple[tuple[str, str], ...]]:
        """The processors of a sandbox whose limit leaves it fewer than there are, and what it is shown of them."""
        chosen = self._processors.take(spec.id, spec.limits.cpus)
        if not chosen:
            return (), ()
        try:
            self._place = cgroup_apply.split_processors(self._place, self._owner.id)
            return chosen, self._processors.shown(chosen)
        except OSError as error:
            raise CreateFailed(f"sandbox {spec.id}: its processors: {error}", "processors") from error

    def _start_launcher(self) -> Launcher:
        with self._starting:
            if self._launcher is None or not self._launcher.usable():
                if self._launcher is not None:
                    self._launcher.abandon()
                leftovers = cgroup_apply.begin(self._owner.dir / GROUPS, self._place, self._owner.id)
                self._launcher = Launcher(find_ids(), leftovers, advance_roots(self._place, self._owner.id))
            return self._launcher

    @staticmethod
    def _note_oom(handle: NativeHandle) -> None:
        if not handle.removed:
            handle.oom = handle.oom or bool(cgroup_apply.oom_kills(handle.plan))

    @staticmethod
    async def _ends(handle: NativeHandle, done: Callable[[], bool]) -> None:
        if not await handle.until(done, END_S):
            raise SandboxLost(f"sandbox {handle.id}: killed, but not gone after {END_S:g} s", "host")


def _sockets(ident: str) -> tuple[socket.socket, socket.socket, socket.socket, socket.socket]:
    """The channel and the status socket, our end and the other one of each; its layer comes later."""
    made: list[socket.socket] = []
    try:
        made += socket.socketpair()
        made += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        for each in made:
            each.close()
        raise CreateFailed(
            f"sandbox {ident}: socketpair: {error.strerror} (each sandbox holds three descriptors here; see ulimit -n)",
            "socketpair",
        ) from error
    return made[0], made[1], made[2], made[3]


def _turn() -> anyio.Semaphore:
    """One of this event loop's places among those that are ended."""
    places = _ending.get(None)
    if places is None:
        places = anyio.Semaphore(ENDING, fast_acquire=True)
        _ending.set(places)
    return places


def _unready(handle: NativeHandle) -> str:
    """Why it is not ready, where nothing has said so."""
    if handle.lost:
        return "its launcher died"
    return f"not ready after {CREATE_S:g} s" if handle.end is None else f"it ended at once, with status {handle.end}"


def _of(handle: Handle) -> NativeHandle:
    assert isinstance(handle, NativeHandle)
    return handle


def _order(handle: NativeHandle, order: bytes) -> None:
    if handle.lost:
        return
    try:
        handle.status.send(order)
    except OSError:
        # It died: its end of the socket says so to the one who reads.
        return


async def _orphans_gone(handle: NativeHandle) -> None:
    """After the launcher's death: the kernel has sent SIGKILL to its children; this waits until that has worked."""
    if not handle.pid:
        await _soon(lambda: not any(map(cgroup_apply.members, handle.plan.directories)))
        return
    try:
        held = os.pidfd_open(handle.pid)
    except ProcessLookupError:
        return
    try:
        with anyio.move_on_after(END_S):
            await anyio.wait_readable(held)
    finally:
        os.close(held)


async def _soon(done: Callable[[], bool]) -> bool:
    """Whether that becomes so in time; nothing tells when."""
    with anyio.move_on_after(END_S):
        while True:
            if done():
                return True
            await anyio.sleep(_PAUSE_S)
    return False


async def _remove_groups(handle: NativeHandle) -> None:
    if not await _soon(lambda: cgroup_apply.remove(handle.plan.directories)):
        raise SandboxLost(f"sandbox {handle.id}: its control groups {handle.plan.directories} stay busy", "host")
