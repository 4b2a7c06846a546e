"""What a sandbox is asked to be."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from proofbox.model.limits import Limits

Level = Literal["none", "container", "user-kernel", "vm"]
LEVELS: Final[tuple[Level, ...]] = ("none", "container", "user-kernel", "vm")
"""Weakest first."""

Network = Literal["none", "host"]
"""``none``: a loopback interface that works and nothing else. ``host`` shares the host's: to build templates only."""


class Volume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory or file of the host, seen read-only at ``target``."""

    source: str
    target: str


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sandbox. ``id`` is chosen before it is made: 1 to 63 of ``a-z 0-9 -``. Limits are the effective ones."""

    id: str
    template: str
    limits: Limits
    network: Network = "none"
    hostname: str = "sandbox"
    volumes: tuple[Volume, ...] = ()
    machine_id: str = ""
    """32 hexadecimal digits, in ``/etc/machine-id``; empty: what the template has."""
    boot_id: str = ""
    """A UUID, in ``/proc/sys/kernel/random/boot_id``; empty: what the host has."""
