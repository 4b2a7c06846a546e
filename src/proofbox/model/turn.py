"""What an agent that acts in a sandbox decides, and what came of it: one turn after the other."""

from __future__ import annotations

import msgspec

from proofbox.model.outcome import HitLimit, Outcome


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent wants done in one turn: shell texts, which run one after the other, whatever comes of them.

    ``timeout``: seconds for each, where the task's own limits are not shorter. ``note`` is for the trace only.
    """

    commands: tuple[str, ...]
    timeout: float | None = None
    note: str = ""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One command as the agent sees it. A limit that ended it is an observation like any other: the agent may go on.

    ``stdout`` and ``stderr`` are the first bytes of it, ``stdout_total`` and ``stderr_total`` how many there were.
    """

    command: str
    outcome: Outcome | None = None
    """None where it was not started; ``error`` says why."""
    error: str = ""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_total: int = 0
    stderr_total: int = 0
    elapsed: float = 0.0
    cpu: float = 0.0
    """CPU seconds of its whole tree, which is the guest's word."""
    oom_kills: int | None = None
    process_denials: int | None = None
    """Counted in the sandbox while it ran; None where nothing counts."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One decision and what came of it. ``number`` counts from 1; ``elapsed`` has the deciding in it."""

    number: int
    decision: Decision
    ran: tuple[Ran, ...] = ()
    """Shorter than the decision's commands where the time of the turn, or of more than that, was over."""
    elapsed: float = 0.0
    limit: HitLimit | None = None
    """``turn_wall``, where that ended its commands. The agent is told, and goes on."""
    cut: bool = False
    """It did not come to its end: the phase did, or the sandbox was lost."""
