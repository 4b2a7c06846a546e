"""What a sandbox is asked to be: in the caller's words, and as they were understood."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from proofbox.errors import InvalidInput, Refused
from proofbox.model.limits import Limits
from proofbox.model.outcome import Outcome
from proofbox.model.spec import Network, SandboxSpec, Volume
from proofbox.model.template import Template
from proofbox.runtime.contract import Probe
from proofbox.sandbox.given import as_env, as_path, as_user
from proofbox.sandbox.setting import KILLED, KILLED_AT_GVISOR, Setting
from proofbox.sandbox.volumes import check_volumes

_ID: Final = re.compile(r"[a-z0-9-]{1,63}")
_HOSTNAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Asked:
    """In the caller's words; see ``Host.open_sandbox``. Nothing of it is checked."""

    template: str | Template = "host"
    limits: Limits | None = None
    network: Network = "none"
    user: str | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    volumes: Sequence[Volume] = ()
    hostname: str = "sandbox"
    verify_start: bool = False
    seed: str | int | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox to be made, but for its id. Sandboxes of equal orders differ in nothing that was asked for."""

    spec: SandboxSpec
    """The id in it is empty."""
    env: dict[bytes, bytes]
    cwd: bytes | None
    """None where the caller was silent."""
    user: bytes
    users: bool
    counts_cpu: bool
    killed: tuple[Outcome, ...]
    """Both as in ``Setting``."""
    verify_start: bool
    """It is handed out only after its full fingerprint was compared too."""
    seed: str | None
    """What its machine id and boot id are made from; None for ever new ones, empty for those that it finds."""
    template: Template = field(compare=False)
    """Its digest is in the spec; another name of the same digest is the same template."""

    def setting(self) -> Setting:
        """What the commands of one such sandbox get. Its directory is as asked, or the template's."""
        cwd = as_path(self.template.cwd, "cwd") if self.cwd is None else self.cwd
        return Setting(
            limits=self.spec.limits,
            env=self.env,
            cwd=cwd,
            user=self.user,
            users=self.users,
            counts_cpu=self.counts_cpu,
            killed=self.killed,
        )


def order_of(asked: Asked, template: Template, limits: Limits, runtime: str, probe: Probe) -> Order:
    """Checks everything that can be checked before anything is made. ``limits`` are the effective ones.

    Raises ``InvalidInput``, and ``Refused`` for what this host does not offer.
    """
    volumes = tuple(asked.volumes)
    _check(asked, template, runtime, probe)
    order = Order(
        spec=SandboxSpec(
            id="",
            template=template.digest,
            limits=limits,
            network=asked.network,
            hostname=asked.hostname,
            volumes=volumes,
        ),
        env={**as_env(template.env), **as_env(asked.env)},
        cwd=None if asked.cwd is None else as_path(asked.cwd, "cwd"),
        user=as_user(template.user if asked.user is None else asked.user),
        users=probe.users,
        counts_cpu="command_cpu_time" in probe.enforces,
        killed=KILLED_AT_GVISOR if "memory" in probe.fatal else KILLED,
        verify_start=asked.verify_start,
        seed=_seed(asked.seed, runtime, probe),
        template=template,
    )
    order.setting().user_with(None)
    return order


def _seed(seed: object, runtime: str, probe: Probe) -> str | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, (str, int)):
        raise InvalidInput(f"seed {seed!r} is neither text nor a whole number")
    if seed != "" and not probe.own_identity:
        raise Refused(
            f"a seed at runtime {runtime!r}", ("its sandboxes have no boot id of their own that a seed could fix",)
        )
    return str(seed)


def check_id(ident: object) -> None:
    """Raises ``InvalidInput`` for what cannot be an id."""
    if not isinstance(ident, str) or not _ID.fullmatch(ident):
        raise InvalidInput(f"sandbox id {ident!r} is not 1 to 63 of a-z 0-9 -")


def _check(asked: Asked, template: Template, runtime: str, probe: Probe) -> None:
    hostname: object = asked.hostname
    network: object = asked.network
    if not isinstance(hostname, str) or not _HOSTNAME.fullmatch(hostname):
        raise InvalidInput(f"hostname {hostname!r} is not 1 to 63 of letters, digits, '-' and '.'")
    if network not in get_args(Network):
        raise InvalidInput(f"network {network!r} is none of {', '.join(get_args(Network))}")
    if network not in probe.networks:
        raise Refused(f"a sandbox at runtime {runtime!r}", (f"network {network!r}: not offered here", *probe.notes))
    if asked.volumes:
        check_volumes(asked.volumes, template)
