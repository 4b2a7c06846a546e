"""This machine as a place for sandboxes: one runtime, what it enforces, and the sandboxes that are opened here."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from time import monotonic
from typing import Final

import anyio.to_thread
import msgspec

from proofbox.errors import InvalidInput, Refused
from proofbox.host.cgroup import PROCESS_RESERVE
from proofbox.host.layers import close_keeper
from proofbox.host.owner import state_dir
from proofbox.host.room import Room, rooms, short
from proofbox.kit.clock import paused
from proofbox.model.limits import DEFAULTS, LIMIT_KINDS, MIB, WITHOUT_CGROUPS, LimitKind, Limits
from proofbox.model.spec import LEVELS, Level, Network, Volume
from proofbox.model.template import Template
from proofbox.runtime import registry
from proofbox.runtime.contract import Probe, Runtime
from proofbox.runtime.reaper import reap_in_background
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.factory import Factory
from proofbox.sandbox.order import Asked, Order, order_of
from proofbox.sandbox.pool import FILLING, KEEP, Pool
from proofbox.sandbox.starts import Starts
from proofbox.templates.store import open_store, stands_for

BY_THIS_LAYER: Final[frozenset[LimitKind]] = frozenset(
    {"wall", "idle", "command_wall", "output", "open_files", "process_memory"}
)
"""Limits that commands get from here, at whatever runtime."""

_LEAST: Final[dict[LimitKind, float]] = {"memory": 4 * MIB, "process_memory": 4 * MIB, "open_files": 8, "disk": 4096}
_NAMED_SECONDS: Final = 10.0
"""How long a template is as good as when it was looked at. Which one a name means is asked each time."""

_hosts: Final[dict[tuple[int, str | None, Level, bool], Host]] = {}


class Host:
    """One runtime on this machine. ``Host.local`` with the same arguments is the same object in a process."""

    def __init__(self, runtime: Runtime, probe: Probe) -> None:
        self.runtime_name = runtime.name
        self.level: Level = min(runtime.level, probe.level, key=LEVELS.index)
        """What was proved here, should the runtime say more of itself."""
        self.probe = probe
        self._factory = Factory(self, runtime)
        self._pools: set[Pool] = set()
        self._templates: dict[str, tuple[float, Template]] = {}
        self._effective: tuple[Limits | None, Limits] | None = None
        """The limits that were asked for last, and what came of them: a thousand sandboxes ask for the same object."""

    @classmethod
    async def local(
        cls, runtime: str | None = None, level: Level = "container", *, allow_unisolated: bool = False
    ) -> Host:
        """The named runtime, or the best usable one of at least ``level``. Never one below it.

        Raises ``Refused`` with every missing item and its remedy, ``InvalidInput`` for an unknown name. The first call
        in a process also starts to remove, in the background, what killed processes have left.
        """
        key = (os.getpid(), runtime, level, allow_unisolated)
        host = _hosts.get(key)
        if host is None:
            chosen, probe = await registry.select(runtime, level, allow_unisolated=allow_unisolated)
            host = _hosts.setdefault(key, cls(chosen, probe))
            reap_in_background()
        return host

    def open_sandbox(
        self,
        template: str | Template = "host",
        *,
        limits: Limits | None = None,
        network: Network = "none",
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        volumes: Sequence[Volume] = (),
        hostname: str = "sandbox",
        id: str | None = None,  # noqa: A002 - the field's word for it
        verify_start: bool = False,
        seed: str | int | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A new sandbox of a template (name or digest), live inside the ``async with``, gone after it.

        ``limits`` go over the defaults; each that is asked for is enforced or the sandbox is refused. ``user``, ``env``
        and ``cwd`` are what its commands get where they do not say otherwise. Raises ``InvalidInput``,
        ``UnknownTemplate``, ``Refused`` (nothing was made), ``CreateFailed`` (nothing is left). Cancelling it leaves
        nothing either. Where many are opened at once, those asked for first are made first, some at a time.

        Before it is handed out it is compared with others of its kind, in the cheap form of ``Sandbox.fingerprint``;
        with ``verify_start`` in the full one too, which reads every file. A difference is ``UncleanStart``. Its machine
        id and boot id are nobody else's; with ``seed`` they are the same for the same seed, and with an empty one those
        of the template and of the host.
        """
        ident = secrets.token_hex(6) if id is None else id
        asked = Asked(template, limits, network, user, env, cwd, volumes, hostname, verify_start, seed)
        return self._open(asked, ident)

    @asynccontextmanager
    async def pool(
        self,
        template: str | Template = "host",
        *,
        size: tuple[int, int] = (2, 16),
        keep: float = KEEP,
        at_once: int = FILLING,
        limits: Limits | None = None,
        network: Network = "none",
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        volumes: Sequence[Volume] = (),
        hostname: str = "sandbox",
        verify_start: bool = False,
    ) -> AsyncIterator[Pool]:
        """Sandboxes of this order made ahead, for ``pool.claim()``; none is left after the ``async with``.

        Between ``size[0]`` and ``size[1]`` stand ready, as the claims need them, at most ``at_once`` are in the making.
        One that nobody has claimed after about ``keep`` seconds is made anew. The rest is as in ``open_sandbox``, which
        see for what it raises; ``Refused`` also where ``size[0]`` do not fit on this host. Returns at once:
        ``pool.ready()`` waits until they stand. Cancelled, nothing is left.
        """
        asked = Asked(template, limits, network, user, env, cwd, volumes, hostname, verify_start)
        pool = Pool(self._factory, self._order, asked, size=size, keep=keep, at_once=at_once)
        await anyio.to_thread.run_sync(self.check_room, size[0], limits)
        await pool.open()
        self._pools.add(pool)
        try:
            yield pool
        finally:
            await pool.aclose()
            self._pools.discard(pool)

    def rooms(self, limits: Limits | None = None) -> tuple[Room, ...]:
        """What limits how many sandboxes this host can hold beside what it holds now, the tightest first.

        Some milliseconds. Raises ``Refused`` as ``effective``, ``StoreFailed``.
        """
        return rooms(self.probe.takes, state_dir(), self.effective(limits).memory)

    def check_room(self, sandboxes: int, limits: Limits | None = None) -> tuple[str, ...]:
        """Raises ``Refused`` where so many cannot stand here at one time, with each limit that is too low, what is left
        of it and what raises it. Returns what they may run short of, should they use what they are allowed to.
        """
        found = short(self.rooms(limits), sandboxes)
        if hard := tuple(room.told(sandboxes) for room in found if room.hard):
            raise Refused(f"{sandboxes} sandboxes of runtime {self.runtime_name!r} at one time", hard)
        return tuple(room.told(sandboxes) for room in found)

    def effective(self, asked: Limits | None) -> Limits:
        """The limits that a sandbox gets here who asks for these. Raises ``Refused`` for those that nothing
        enforces.
        """
        latest = self._effective
        if latest is not None and latest[0] is asked:
            return latest[1]
        effective = self._worked_out(asked or Limits())
        self._effective = asked, effective
        return effective

    def _worked_out(self, wanted: Limits) -> Limits:
        for kind in wanted.asked():
            value = getattr(wanted, kind)
            if isinstance(value, bool) or not value > 0 or value < _LEAST.get(kind, 0) or value > 1 << 62:
                raise InvalidInput(f"limit {kind}={value!r}: at least {_LEAST.get(kind, 'more than 0')} is needed")
        enforced = self.probe.enforces | BY_THIS_LAYER
        lacking = [kind for kind in wanted.asked() if kind not in enforced]
        if lacking:
            items = [f"limit {kind}={getattr(wanted, kind)}: nothing on this host enforces it" for kind in lacking]
            raise Refused(f"a sandbox at runtime {self.runtime_name!r}", (*items, *self.probe.notes))
        base = Limits(**{kind: getattr(DEFAULTS, kind) for kind in LIMIT_KINDS if kind in enforced})
        if "memory" not in enforced:
            base = WITHOUT_CGROUPS.over(_held_by_rlimit(base))
        effective = wanted.over(base)
        if (effective.memory_reserve or 0) > (effective.memory or inf):
            raise InvalidInput(f"memory_reserve={effective.memory_reserve} is more than memory={effective.memory}")
        return effective

    @property
    def starts(self) -> Starts:
        """How many starts of sandboxes were looked at here, and how many of them were not clean."""
        return self._factory.starts

    async def aclose(self) -> None:
        """Ends the pools and sandboxes that are open here, and what the runtimes of this process run for themselves.
        Idempotent.
        """
        for key in [key for key, host in _hosts.items() if host is self]:
            del _hosts[key]
        for pool in list(self._pools):
            await pool.aclose()
        for life in list(self._factory.lives):
            await life.end()
        await anyio.to_thread.run_sync(reap_in_background().join)
        if not any(pid == os.getpid() for pid, *_ in _hosts):
            await registry.close()
            await anyio.to_thread.run_sync(close_keeper)

    @asynccontextmanager
    async def _open(self, asked: Asked, ident: str) -> AsyncIterator[Sandbox]:
        order = await self._order(asked)
        life = await self._factory.make(order, ident)
        try:
            yield self._factory.hand_out(order, life)
        finally:
            with paused():  # who is timed does not pay for the end of it
                await life.end()

    async def _order(self, asked: Asked, before: Order | None = None) -> Order:
        """What is asked for, understood and checked: names of templates mean now what they mean now. ``before`` is what
        the same was found to be; it stands unless the name means another digest.
        """
        template = asked.template
        found = template if isinstance(template, Template) else await self._resolve(template)
        if before is not None and before.spec.template == found.digest:
            return before
        return order_of(asked, found, self.effective(asked.limits), self.runtime_name, self.probe)

    async def _resolve(self, name: str) -> Template:
        known = self._templates.get(name)
        if known is not None and known[1].digest == name:
            return known[1]
        if known is not None and monotonic() - known[0] < _NAMED_SECONDS and stands_for(name, known[1]):
            return known[1]
        if not name:
            raise InvalidInput(f"a template is named by text, not by {name!r}")
        found = await anyio.to_thread.run_sync(lambda: open_store().resolve(name))
        self._templates[name] = (monotonic(), found)
        return found


@asynccontextmanager
async def open_sandbox(
    template: str | Template = "host",
    *,
    runtime: str | None = None,
    level: Level = "container",
    allow_unisolated: bool = False,
    limits: Limits | None = None,
    network: Network = "none",
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    volumes: Sequence[Volume] = (),
    hostname: str = "sandbox",
    id: str | None = None,  # noqa: A002 - the field's word for it
    verify_start: bool = False,
    seed: str | int | None = None,
) -> AsyncIterator[Sandbox]:
    """One sandbox on this machine: ``Host.local`` and its ``open_sandbox`` in one."""
    host = await Host.local(runtime, level, allow_unisolated=allow_unisolated)
    async with host.open_sandbox(
        template,
        limits=limits,
        network=network,
        user=user,
        env=env,
        cwd=cwd,
        volumes=volumes,
        hostname=hostname,
        id=id,
        verify_start=verify_start,
        seed=seed,
    ) as box:
        yield box


@asynccontextmanager
async def open_pool(
    template: str | Template = "host",
    *,
    runtime: str | None = None,
    level: Level = "container",
    allow_unisolated: bool = False,
    size: tuple[int, int] = (2, 16),
    keep: float = KEEP,
    at_once: int = FILLING,
    limits: Limits | None = None,
    network: Network = "none",
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    volumes: Sequence[Volume] = (),
    hostname: str = "sandbox",
    verify_start: bool = False,
) -> AsyncIterator[Pool]:
    """A warm pool on this machine: ``Host.local`` and its ``pool`` in one."""
    host = await Host.local(runtime, level, allow_unisolated=allow_unisolated)
    async with host.pool(
        template,
        size=size,
        keep=keep,
        at_once=at_once,
        limits=limits,
        network=network,
        user=user,
        env=env,
        cwd=cwd,
        volumes=volumes,
        hostname=hostname,
        verify_start=verify_start,
    ) as pool:
        yield pool


def _held_by_rlimit(base: Limits) -> Limits:
    """Without control groups the kernel holds processes by a limit that is no higher than this process's own."""
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    if base.processes is None or most < 0 or most >= base.processes + PROCESS_RESERVE:
        return base
    return msgspec.structs.replace(base, processes=max(1, most - PROCESS_RESERVE))
