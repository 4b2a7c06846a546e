"""This machine as a place for sandboxes: one runtime, what it enforces, and the sandboxes that are opened here."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from time import monotonic
from typing import Final, cast, get_args

import anyio.to_thread

from proofbox.errors import Busy, InvalidInput, Refused
from proofbox.host.memory import available_memory
from proofbox.kit.clock import paused
from proofbox.model.limits import DEFAULTS, LIMIT_KINDS, MIB, WITHOUT_CGROUPS, LimitKind, Limits
from proofbox.model.spec import Level, Network, SandboxSpec, Volume
from proofbox.model.template import Template
from proofbox.runtime import registry
from proofbox.runtime.contract import OwnDirectory, Probe, Runtime
from proofbox.runtime.reaper import reap_in_background
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.commands import Setting
from proofbox.sandbox.given import as_env, as_path, as_user
from proofbox.sandbox.lifecycle import Life
from proofbox.templates.store import open_store

BY_THIS_LAYER: Final[frozenset[LimitKind]] = frozenset(
    {"wall", "idle", "command_wall", "output", "open_files", "process_memory"}
)
"""Limits that commands get from here, at whatever runtime."""

_LEAST: Final[dict[LimitKind, float]] = {"memory": 4 * MIB, "process_memory": 4 * MIB, "open_files": 8, "disk": 4096}
_ID: Final = re.compile(r"[a-z0-9-]{1,63}")
_HOSTNAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_NAMED_SECONDS: Final = 10.0
"""How long a name keeps its meaning without asking the store again."""

_hosts: Final[dict[tuple[int, str | None, Level, bool], Host]] = {}


class Host:
    """One runtime on this machine. ``Host.local`` with the same arguments is the same object in a process."""

    def __init__(self, runtime: Runtime, probe: Probe) -> None:
        self.runtime_name = runtime.name
        self.level: Level = runtime.level
        self.probe = probe
        self._runtime = runtime
        self._own_directory: bool | None = None
        """What a handle of this runtime is; known from the first one on."""
        self._lives: set[Life] = set()
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
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A new sandbox of a template (name or digest), live inside the ``async with``, gone after it.

        ``limits`` go over the defaults; each that is asked for is enforced or the sandbox is refused. ``user``, ``env``
        and ``cwd`` are what its commands get where they do not say otherwise. Raises ``InvalidInput``,
        ``UnknownTemplate``, ``Refused`` (nothing was made), ``CreateFailed`` (nothing is left). Cancelling it leaves
        nothing either.
        """
        ident = secrets.token_hex(6) if id is None else id
        volumes = tuple(volumes)
        return self._open(template, ident, limits, network, user, as_env(env), cwd, volumes, hostname)

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
            base = WITHOUT_CGROUPS.over(base)
        effective = wanted.over(base)
        if (effective.memory_reserve or 0) > (effective.memory or inf):
            raise InvalidInput(f"memory_reserve={effective.memory_reserve} is more than memory={effective.memory}")
        return effective

    async def aclose(self) -> None:
        """Ends the sandboxes that are open here, and what the runtimes of this process run for themselves.
        Idempotent.
        """
        for key in [key for key, host in _hosts.items() if host is self]:
            del _hosts[key]
        for life in list(self._lives):
            await life.end()
        await anyio.to_thread.run_sync(reap_in_background().join)
        if not any(pid == os.getpid() for pid, *_ in _hosts):
            await registry.close()

    @asynccontextmanager
    async def _open(
        self,
        template: str | Template,
        ident: str,
        limits: Limits | None,
        network: Network,
        user: str | None,
        env: dict[bytes, bytes],
        cwd: str | None,
        volumes: tuple[Volume, ...],
        hostname: str,
    ) -> AsyncIterator[Sandbox]:
        self._check(ident, network, volumes, hostname)
        found = template if isinstance(template, Template) else await self._resolve(template)
        effective = self.effective(limits)
        setting = Setting(
            limits=effective,
            env={**as_env(found.env), **env},
            cwd=as_path(cwd if cwd is not None else found.cwd, "cwd"),
            user=as_user(user if user is not None else found.user),
            users=self.probe.users,
        )
        setting.user_with(None)
        spec = SandboxSpec(
            id=ident,
            template=found.digest,
            limits=effective,
            network=network,
            hostname=hostname,
            volumes=volumes,
        )
        self._reserve(effective)
        life = Life(self._runtime, spec, found)
        self._lives.add(life)
        try:
            with paused():  # who is timed does not pay for the making of it
                await life.open()
            if self._own_directory is None:
                self._own_directory = isinstance(life.handle, OwnDirectory)
            start = b"/"
            if self._own_directory:
                start = os.fsencode(cast(OwnDirectory, life.handle).cwd)
                setting.cwd = as_path(cwd, "cwd") if cwd is not None else start
            setting.cwd = posixpath.normpath(posixpath.join(start, setting.cwd))
            yield Sandbox(self, found, life, setting)
        finally:
            await life.end()
            self._lives.discard(life)

    def _reserve(self, limits: Limits) -> None:
        """Raises ``Busy`` if the sandboxes of this process that are open have reserved what this one is to have."""
        if limits.memory_reserve is None:
            return
        held = sum(life.spec.limits.memory_reserve or 0 for host in _hosts.values() for life in host._lives)
        room = available_memory()
        if held + limits.memory_reserve > room:
            raise Busy(
                f"memory_reserve={limits.memory_reserve}: {held} of {room} bytes are reserved by sandboxes that are "
                "open; close some, or reserve less"
            )

    async def _resolve(self, name: str) -> Template:
        known = self._templates.get(name)
        if known is not None and (known[1].digest == name or monotonic() - known[0] < _NAMED_SECONDS):
            return known[1]
        if not name:
            raise InvalidInput(f"a template is named by text, not by {name!r}")
        found = await anyio.to_thread.run_sync(lambda: open_store().resolve(name))
        self._templates[name] = (monotonic(), found)
        return found

    def _check(self, ident: object, network: object, volumes: Sequence[Volume], hostname: object) -> None:
        if not isinstance(ident, str) or not _ID.fullmatch(ident):
            raise InvalidInput(f"sandbox id {ident!r} is not 1 to 63 of a-z 0-9 -")
        if any(life.spec.id == ident for life in self._lives):
            raise InvalidInput(f"sandbox id {ident!r} is in use by a live sandbox of this process")
        if not isinstance(hostname, str) or not _HOSTNAME.fullmatch(hostname):
            raise InvalidInput(f"hostname {hostname!r} is not 1 to 63 of letters, digits, '-' and '.'")
        if network not in get_args(Network):
            raise InvalidInput(f"network {network!r} is none of {', '.join(get_args(Network))}")
        if network not in self.probe.networks:
            raise Refused(
                f"a sandbox at runtime {self.runtime_name!r}",
                (f"network {network!r}: not offered here", *self.probe.notes),
            )
        for volume in volumes:
            target = as_path(volume.target, "volume target")
            if not target.startswith(b"/") or posixpath.normpath(target) != target or target == b"/":
                raise InvalidInput(f"volume target {volume.target!r} is not an absolute, plain path below /")
            if not os.path.isabs(volume.source) or not os.path.exists(as_path(volume.source, "volume source")):
                raise InvalidInput(f"volume source {volume.source!r} is not an absolute path of something on this host")


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
    ) as box:
        yield box
