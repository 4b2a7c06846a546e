"""What is recorded while a run goes on: events, in the order in which they happened. Times are unix seconds.

RunOpened                          a process began to write: first start or resume
IsolationFound                     how some of its sandboxes are kept apart
AttemptStarted, AttemptEnded       one try of a trial. A start without an end was interrupted; it is never deleted
TurnEnded                          one turn of an agent in its sandbox, with what its commands came to
TrialEnded                         the trial's ending is booked. A judged one (passed, failed, limit) never changes
RunClosed                          the process stopped writing in good order, and why
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from proofbox.errors import Again, Blame
from proofbox.model.ids import TrialId, digest
from proofbox.model.isolation import Isolation
from proofbox.model.outcome import HitLimit, Outcome
from proofbox.model.verdict import Ending, Verdict

INLINE: Final = 8 * 1024
"""Bytes up to which a payload stands in the event itself; what is longer goes into a blob."""
TEXT: Final = 4 * 1024
"""Characters of a reason or a message that are kept."""

JUDGED: Final[frozenset[Ending]] = frozenset({"passed", "failed", "limit"})

Phase = Literal["setup", "agent", "verify"]
Closing = Literal["complete", "cancelled", "stopped", "failed"]


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """Raw bytes: here, or under their digest in the run's blobs where ``inline`` is None."""

    digest: str
    size: int
    inline: bytes | None = None

    @classmethod
    def of(cls, data: bytes) -> Payload:
        """Names the bytes, and holds them where they are few."""
        return cls(digest=digest(data), size=len(data), inline=data if len(data) <= INLINE else None)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt has no verdict: the parts of a ``ProofboxError``. ``phase`` is where it was raised."""

    code: str
    blame: Blame
    again: Again
    phase: Phase
    reason: str = ""
    message: str = ""
    limit: HitLimit | None = None
    """A limit that fired and says nothing about the agent: the host's doing, with its evidence, or the verifier's."""


class RunOpened(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="run_opened"):
    """``dropped``: bytes of a line torn by a crash, cut from the log's end; ``versions`` as in ``run.json``."""

    at: float
    dropped: int = 0
    versions: dict[str, str] = {}


class AttemptStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="attempt_started"):
    """One try began, at ``at``; ``attempt`` counts from 1 over all processes of the run."""

    trial: TrialId
    attempt: int
    at: float


class IsolationFound(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="isolation_found"):
    """How sandboxes of the run are kept apart, before the first attempt that names it by ``digest``. Its ``ids`` are
    left out: each sandbox may have others, and has its own beside it.
    """

    at: float
    digest: str
    isolation: Isolation


class SandboxSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox that an attempt used, as it was found before anything of the attempt ran in it.

    ``phase`` is where it was opened or first used; a grader has the same ``id`` in many attempts. ``isolation`` is the
    digest of an ``IsolationFound``, ``ids`` are as in ``Isolation``.
    """

    id: str
    phase: Phase
    isolation: str
    ids: tuple[tuple[int, int, int], ...] = ()


class AttemptEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="attempt_ended"):
    """Exactly one of ``verdict`` (its log moved to ``log``), ``failure`` and neither: then nothing was handed in."""

    trial: TrialId
    attempt: int
    at: float
    ending: Ending
    reason: str = ""
    verdict: Verdict | None = None
    failure: Failure | None = None
    candidate: Payload | None = None
    log: Payload | None = None
    sandboxes: tuple[SandboxSeen, ...] = ()
    timings: dict[str, float] = {}
    """Seconds: queue, sandbox (making the agent's), setup, agent, verify, and what the verifier measured of it."""


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``proofbox.model.turn.Ran``, with its output as it is kept on disk."""

    command: str
    outcome: Outcome | None
    error: str
    stdout: Payload
    stderr: Payload
    stdout_total: int
    stderr_total: int
    elapsed: float
    cpu: float
    oom_kills: int | None = None
    process_denials: int | None = None


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="turn_ended"):
    """``proofbox.model.turn.Turn``. On disk before the agent sees it."""

    trial: TrialId
    attempt: int
    at: float
    turn: int
    note: str
    timeout: float | None
    commands: tuple[CommandRecord, ...]
    elapsed: float
    limit: HitLimit | None = None
    cut: bool = False


class TrialEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="trial_ended"):
    """``attempt`` is the one that decided. ``reward`` is there if and only if it was judged and is not masked."""

    trial: TrialId
    attempt: int
    at: float
    ending: Ending
    reward: float | None = None


class RunClosed(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="run_closed"):
    """``overhead``: CPU seconds an attempt that were neither the agent's nor the verifier's, over ``attempts`` of them.

    ``disk``: seconds in which the log was being written, beside the trials.
    """

    at: float
    closing: Closing
    why: str = ""
    attempts: int = 0
    overhead: float = 0.0
    disk: float = 0.0


Event = RunOpened | IsolationFound | AttemptStarted | TurnEnded | AttemptEnded | TrialEnded | RunClosed
EVENTS: Final = get_args(Event)


def recordable(text: str, limit: int = TEXT) -> str:
    """Text that JSON in UTF-8 can hold: lone surrogates escaped, the middle left out beyond ``limit`` characters."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
