"""How a trial ended, and why."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from proofbox.model.outcome import HitLimit, Usage

Ending = Literal["passed", "failed", "limit", "infrastructure", "not_run"]
ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)
"""Exactly one for each trial; every report shows all five, over what was asked for."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a verifier found. ``reason`` is one line for a person; ``limit`` is there just when the ending is ``limit``.

    Nothing in it is taken from what the candidate printed. ``log`` is that text, for a person to read, cut to a few KB.
    """

    ending: Literal["passed", "failed", "limit"]
    reason: str = ""
    limit: HitLimit | None = None
    log: bytes = b""
    usage: Usage | None = None
    timings: dict[str, float] = {}
    """Seconds of each phase: create, start, calls, destroy, ..."""
    masked: bool = False
    """It is an ending, and must not teach: ``proofbox.model.blame`` says when. Set by whoever runs the trial."""

    @property
    def reward(self) -> float | None:
        """1.0 passed, 0.0 otherwise, None where masked. An infrastructure failure has no verdict, and so no reward."""
        if self.masked:
            return None
        return 1.0 if self.ending == "passed" else 0.0
