"""From what was found to a verdict: which of passed, failed and limit it is, and the line that says why."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from time import time
from typing import Final, assert_never

from proofbox.errors import VerifierFailed
from proofbox.model.blame import cause_of
from proofbox.model.limits import FiredKind, Limits
from proofbox.model.outcome import Exited, HitLimit, Killed, Lost, Outcome, Signaled, Usage, memory_hit
from proofbox.model.task import Task
from proofbox.model.trace import recordable
from proofbox.model.verdict import Verdict
from proofbox.verify.exchange import Found, Gone

UNITS: Final[dict[FiredKind, str]] = {
    "command_wall": "s",
    "cpu_time": "s",
    "command_cpu_time": "s",
    "memory": "bytes",
    "output": "bytes",
    "disk": "bytes",
    "processes": "processes",
    "inodes": "files",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one candidate. ``usage`` was read from outside its sandbox, after the verdict.

    ``outcome`` is how its process ended where that matters: where it stopped to answer. ``log`` is what it printed.
    """

    found: Found
    outcome: Outcome | None
    log: bytes
    usage: Usage
    limits: Limits


def verdict_of(task: Task, evidence: Evidence) -> Verdict:
    """The verdict, without timings. Raises ``VerifierFailed`` where there is none to be had."""
    found = evidence.found
    log = evidence.log
    if found.word == "passed":
        return Verdict(ending="passed", log=log, usage=evidence.usage)
    if found.word == "broken":
        raise VerifierFailed(f"task {task.id} cannot be judged: {found.reason}")
    if found.word == "died":
        raise VerifierFailed(f"task {task.id}: the grader's child died ({found.reason})")
    reason = found.reason
    if found.word == "gone":
        if found.gone is None:
            raise VerifierFailed(f"task {task.id}: the grader lost the answers of a candidate that was still there")
        reason = _why_gone(task, found.gone, evidence)
    limit = _limit(task, evidence)
    if limit is not None:
        return Verdict(ending="limit", reason=_limit_text(limit, reason), limit=limit, log=log, usage=evidence.usage)
    return Verdict(ending="failed", reason=recordable(reason, 1000), log=log, usage=evidence.usage)


def ended_by(limit: HitLimit) -> Verdict:
    """The verdict where the whole sandbox was ended for what the candidate took: CPU time, memory, processes."""
    return Verdict(ending="limit", reason=_limit_text(limit, "the whole sandbox was ended for it"), limit=limit)


def _why_gone(task: Task, gone: Gone, evidence: Evidence) -> str:
    where = evidence.found.reason
    match gone.why:
        case "never started":
            raise VerifierFailed(
                f"task {task.id}: the candidate's interpreter did not start: {gone.text}; {evidence.outcome}, "
                f"it printed {evidence.log[-300:]!r}"
            )
        case "time":
            return f"no answer in time in {where}"
        case "broken":
            return gone.text
        case "garbage":
            return f"sent {gone.text} into the channel before {where} was answered"
        case "closed":
            return f"{_how_it_ended(evidence.outcome)} before {where} was answered"
    assert_never(gone.why)


def _how_it_ended(outcome: Outcome | None) -> str:
    match outcome:
        case Exited(code=code):
            return f"exited early with code {code}"
        case Signaled(signal=number):
            return f"was ended by {_signal_name(number)}"
        case Killed() | None:
            return "closed its channel"
        case Lost():
            return "killed the process that supervised it"
        case HitLimit(kind=kind):
            return f"hit the limit {kind}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _limit(task: Task, evidence: Evidence) -> HitLimit | None:
    """The limit that stands behind an answer that was not right: the kernel's counters first, then the clock."""
    usage, limits, found = evidence.usage, evidence.limits, evidence.found
    elapsed = found.calls
    if isinstance(evidence.outcome, HitLimit):
        return evidence.outcome
    if usage.oom_kills:
        return memory_hit(limits.memory, usage.memory_peak, elapsed)
    if usage.process_denials:
        most = float(limits.processes or 0)
        return HitLimit(kind="processes", limit=most, used=most, elapsed=elapsed, cause="task")
    if usage.full is not None:
        most = float(getattr(limits, usage.full) or 0)
        used = usage.disk if usage.full == "disk" else most
        return HitLimit(kind=usage.full, limit=most, used=used, elapsed=elapsed, cause="task")
    if found.word == "gone" and found.gone is not None and found.gone.why == "time":
        confirmed = not isinstance(evidence.outcome, Killed) or evidence.outcome.confirmed
        return HitLimit(
            kind="command_wall",
            limit=task.judge.timeout,
            used=found.used,
            elapsed=elapsed,
            cause=cause_of(found.seen),
            confirmed=confirmed,
            at=time(),
            evidence=found.seen,
        )
    return None


def _limit_text(limit: HitLimit, reason: str) -> str:
    unit = UNITS.get(limit.kind, "")
    used = "unknown" if limit.used is None else f"{limit.used:.10g}"
    head = f"limit {limit.kind} of {limit.limit:.10g} {unit} reached (used {used}, after {limit.elapsed:.2f} s"
    head += f", cause {limit.cause})"
    return recordable(f"{head}: {reason}", 1000)
