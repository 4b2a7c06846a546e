"""By what a sandbox is told apart from its siblings by the programs in it: as machines are, by two numbers."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from typing import NamedTuple


class Identity(NamedTuple):
    """``machine_id`` as machine-id(5) has it, ``boot_id`` as the kernel writes a UUID."""

    machine_id: str
    boot_id: str


def new_identity() -> Identity:
    """Nobody else's."""
    return _of(secrets.token_bytes(32))


def identity_of(seed: str) -> Identity:
    """The same for the same seed, everywhere and always; of two seeds it tells nothing about either."""
    return _of(hashlib.sha256(f"proofbox identity {seed}".encode("utf-8", "surrogateescape")).digest())


def _of(raw: bytes) -> Identity:
    machine, boot = (uuid.UUID(bytes=part, version=4) for part in (raw[:16], raw[16:32]))
    return Identity(machine.hex, str(boot))
