"""What a build tells while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegan:
    """A step is looked at: ``number`` of ``total`` of its stage."""

    stage: str
    number: int
    total: int
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """A running step wrote this; pipe 1 or 2."""

    pipe: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """It is done, in so many seconds; ``kept``: it was there already."""

    kept: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePulled:
    """The base was not in the store, and came from a registry."""

    reference: str
    seconds: float


Event = StepBegan | StepOutput | StepEnded | BasePulled
Tell = Callable[[Event], None]
