"""Capabilities that stay and paths that are hidden, from ``confinement.toml``."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Confinement:
    """``capabilities`` by name without ``CAP_``, with the kernel's number; paths are relative to ``/proc``."""

    capabilities: dict[str, int]
    masked: tuple[str, ...]
    readonly: tuple[str, ...]

    def capability_mask(self) -> int:
        """The capabilities as the kernel's bit set."""
        return sum(1 << number for number in self.capabilities.values())


@functools.cache
def confinement() -> Confinement:
    """What the data file says."""
    table = tomllib.loads(resources.files("proofbox.host").joinpath("confinement.toml").read_text(encoding="utf-8"))
    return Confinement(
        {entry["name"]: entry["number"] for entry in table["capability"]},
        tuple(entry["path"] for entry in table["mask"]),
        tuple(entry["path"] for entry in table["readonly"]),
    )
