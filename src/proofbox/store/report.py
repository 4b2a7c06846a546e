"""From the log of a run to what is reported. Every figure is over what was asked for; nothing drops out of sight."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from proofbox.errors import Blame, UncleanStart
from proofbox.model.ids import TrialId
from proofbox.model.isolation import Isolation
from proofbox.model.limits import FiredKind
from proofbox.model.outcome import Cause, HitLimit
from proofbox.model.run import BrokenLine, RunRecord
from proofbox.model.trace import (
    JUDGED,
    AttemptEnded,
    AttemptStarted,
    Closing,
    Event,
    Failure,
    IsolationFound,
    RunClosed,
    RunOpened,
    SandboxSeen,
    TrialEnded,
    TurnEnded,
)
from proofbox.model.verdict import ENDINGS, Ending
from proofbox.store.pass_at_k import pass_at_k
from proofbox.store.runs import RunDir

REPORT_FORMAT: Final = 1

State = Closing | Literal["open"]
"""``open``: not closed, so it goes on at this moment or its process was killed."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one phase over all attempts that have it."""

    count: int
    p50: float
    p95: float
    max: float


class TrialLine(msgspec.Struct, frozen=True, kw_only=True):
    """One trial. ``reward`` is None where nothing was judged; ``failure`` or ``reason`` says why. Never a number."""

    task: str
    index: int
    ending: Ending
    reward: float | None
    reason: str = ""
    attempts: int = 0
    first: Ending | None = None
    """How its first attempt ended; None if that was interrupted, or there was none."""
    failure: Failure | None = None
    limit: HitLimit | None = None
    sandboxes: tuple[SandboxSeen, ...] = ()
    """Of the attempt that decided."""


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task of which trials were asked for."""

    task: str
    asked: int
    endings: dict[Ending, int]


class IsolationLine(msgspec.Struct, frozen=True, kw_only=True):
    """How sandboxes were kept apart, its ``ids`` left out, and of how many attempts one or more of them were."""

    digest: str
    isolation: Isolation
    attempts: int


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that fired, for one cause: in how many attempts, how many trials it ended, how many have no reward."""

    kind: FiredKind
    cause: Cause
    trials: int
    attempts: int = 0
    masked: int = 0


class FailureLine(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that failed in the same way; ``example`` is the message of the last one."""

    code: str
    blame: Blame
    phase: str
    reason: str
    attempts: int
    example: str


class PassAtK(msgspec.Struct, frozen=True, kw_only=True):
    """``judged``: over the judged trials of the ``tasks`` that have one. ``strict``: over every task and trial that was
    asked for, where what was not judged counts as not passed. Broken lines belong to no task and are in neither.
    """

    judged: dict[str, float]
    strict: dict[str, float]
    tasks: int
    tasks_asked: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it is about ``asked`` trials: the five ``endings`` add up to it."""

    format: int = REPORT_FORMAT
    run: str
    path: str
    state: State
    why: str
    record: RunRecord
    asked: int
    endings: dict[Ending, int]
    first_attempt: dict[Ending, int]
    attempts: int
    interrupted: int
    """Attempts that started and have no end: their process was stopped."""
    pass_at_k: PassAtK
    tasks: tuple[TaskLine, ...]
    limits: tuple[LimitLine, ...]
    failures: tuple[FailureLine, ...]
    unclean_starts: int
    """Attempts that met a sandbox which was not what others of its template are: it was ended and judged nothing."""
    broken: tuple[BrokenLine, ...]
    isolations: tuple[IsolationLine, ...]
    """More than one: some sandboxes were kept apart in another way than others."""
    timings: dict[str, Spread]
    wall: float
    """Seconds from the run's opening to its last event, the time between a stop and a resume left out."""
    overhead: float | None
    """CPU seconds an attempt that were neither the agent's nor the verifier's."""
    disk: float
    """Seconds in which the log was being written, beside the trials."""
    torn: int
    """Bytes of a cut line at the log's end, which were left out."""
    trials: tuple[TrialLine, ...]

    @property
    def judged(self) -> int:
        return sum(self.endings[ending] for ending in JUDGED)


class _Trial:
    """What the log says about one trial."""

    __slots__ = ("attempts", "ended", "final", "first")

    def __init__(self) -> None:
        self.attempts = 0
        self.first: Ending | None = None
        self.ended: AttemptEnded | None = None
        self.final: TrialEnded | None = None

    @property
    def judged(self) -> bool:
        return self.final is not None and self.final.ending in JUDGED


class _Fold:
    """Reads the events once, in order."""

    def __init__(self) -> None:
        self.trials: defaultdict[TrialId, _Trial] = defaultdict(_Trial)
        self.timings: defaultdict[str, list[float]] = defaultdict(list)
        self.failures: Counter[tuple[str, Blame, str, str]] = Counter()
        self.examples: dict[tuple[str, Blame, str, str], str] = {}
        self.fired: Counter[tuple[FiredKind, Cause]] = Counter()
        self.isolations: dict[str, Isolation] = {}
        self.apart: Counter[str] = Counter()
        self.started = self.ended = 0
        self.turns: defaultdict[tuple[TrialId, int], set[tuple[FiredKind, Cause]]] = defaultdict(set)
        self.closed: RunClosed | None = None
        self.overheads: list[tuple[int, float]] = []
        self.disk = 0.0
        self.wall = 0.0
        self._opened = 0.0
        self._before = 0.0

    def see(self, event: Event) -> None:
        if isinstance(event, RunOpened):
            self.closed = None
            self._opened, self._before = event.at, self.wall
            return
        self.wall = max(self.wall, self._before + event.at - self._opened)
        if isinstance(event, RunClosed):
            self.closed = event
            self.overheads.append((event.attempts, event.overhead))
            self.disk += event.disk
        elif isinstance(event, AttemptStarted):
            self.started += 1
            trial = self.trials[event.trial]
            trial.attempts = max(trial.attempts, event.attempt)
        elif isinstance(event, IsolationFound):
            self.isolations[event.digest] = event.isolation
        elif isinstance(event, TurnEnded):
            self.turns[event.trial, event.attempt] |= _fired_in(event)
        elif isinstance(event, AttemptEnded):
            self._attempt(event)
        else:
            self._booked(event)

    def _attempt(self, event: AttemptEnded) -> None:
        self.ended += 1
        self.apart.update({each.isolation for each in event.sandboxes})
        trial = self.trials[event.trial]
        if not trial.judged:
            trial.ended = event
        if event.attempt == 1:
            trial.first = event.ending
        for phase, seconds in event.timings.items():
            self.timings[phase].append(seconds)
        limit = event.verdict.limit if event.verdict else event.failure.limit if event.failure else None
        if not trial.judged:
            self.fired.update(_fired(event, limit) | self.turns.pop((event.trial, event.attempt), set()))
        if (failure := event.failure) is not None:
            key = (failure.code, failure.blame, failure.phase, failure.reason)
            self.failures[key] += 1
            self.examples[key] = failure.message

    def _booked(self, event: TrialEnded) -> None:
        trial = self.trials[event.trial]
        if not trial.judged:  # the first judgement stands, whatever follows
            trial.final = event


def _fired(event: AttemptEnded, limit: HitLimit | None) -> set[tuple[FiredKind, Cause]]:
    """The limits that fired in an attempt: the one that it ended by, and those that the kernel counted besides."""
    fired: set[tuple[FiredKind, Cause]] = set() if limit is None else {(limit.kind, limit.cause)}
    usage = event.verdict.usage if event.verdict else None
    if usage is not None:
        fired |= {("memory", "task")} if usage.oom_kills else set()
        fired |= {("processes", "task")} if usage.process_denials else set()
        fired |= {(usage.full, "task")} if usage.full else set()
    return fired


def _fired_in(turn: TurnEnded) -> set[tuple[FiredKind, Cause]]:
    """The limits that fired in a turn. They ended commands, and no trial by themselves."""
    fired: set[tuple[FiredKind, Cause]] = set()
    for each in turn.commands:
        fired |= {(each.outcome.kind, each.outcome.cause)} if isinstance(each.outcome, HitLimit) else set()
        fired |= {("memory", "task")} if each.oom_kills else set()
        fired |= {("processes", "task")} if each.process_denials else set()
    return fired


def build_report(record: RunRecord, events: Iterable[Event], *, path: str = "", torn: int = 0) -> Report:
    """Pure but for the reading of ``events``."""
    fold = _Fold()
    for event in events:
        fold.see(event)
    trials = tuple(_trial_line(trial, fold.trials.get(trial)) for trial in record.plan.fair())
    tasks = _task_lines(record, trials)
    endings = _count(trial.ending for trial in trials)
    endings["not_run"] += len(record.plan.broken)
    measured = sum(count for count, _ in fold.overheads)
    return Report(
        run=record.id,
        path=path,
        state=fold.closed.closing if fold.closed else "open",
        why=fold.closed.why if fold.closed else "",
        record=record,
        asked=record.plan.asked,
        endings=endings,
        first_attempt=_first_attempts(trials, len(record.plan.broken)),
        attempts=fold.started,
        interrupted=fold.started - fold.ended,
        pass_at_k=_pass_at_k(tasks, record.config.ks),
        tasks=tasks,
        limits=_limit_lines(trials, fold.fired),
        failures=tuple(
            FailureLine(code=key[0], blame=key[1], phase=key[2], reason=key[3], attempts=n, example=fold.examples[key])
            for key, n in fold.failures.most_common()
        ),
        unclean_starts=sum(n for key, n in fold.failures.items() if key[0] == UncleanStart.code),
        broken=record.plan.broken,
        isolations=tuple(
            IsolationLine(digest=digest, isolation=fold.isolations[digest], attempts=n)
            for digest, n in fold.apart.most_common()
            if digest in fold.isolations
        ),
        timings={phase: spread(seconds) for phase, seconds in fold.timings.items()},
        wall=fold.wall,
        overhead=sum(n * seconds for n, seconds in fold.overheads) / measured if measured else None,
        disk=fold.disk,
        torn=torn,
        trials=trials,
    )


def read_report(run: RunDir) -> Report:
    """The report over a run on disk, also while it goes on. Raises ``StoreFailed``."""
    events = run.events()
    report = build_report(run.record(), events, path=str(run.path))
    return msgspec.structs.replace(report, torn=events.torn)


def _trial_line(trial: TrialId, seen: _Trial | None) -> TrialLine:
    if seen is None:
        return TrialLine(task=trial.task, index=trial.index, ending="not_run", reward=None, reason="never started")
    if seen.final is None:
        return TrialLine(
            task=trial.task,
            index=trial.index,
            ending="not_run",
            reward=None,
            reason="not finished",
            attempts=seen.attempts,
            first=seen.first,
        )
    end = seen.ended
    verdict = end.verdict if end else None
    return TrialLine(
        task=trial.task,
        index=trial.index,
        ending=seen.final.ending,
        reward=seen.final.reward,
        reason=end.reason if end else "",
        attempts=seen.attempts,
        first=seen.first,
        failure=end.failure if end else None,
        limit=verdict.limit if verdict else None,
        sandboxes=end.sandboxes if end else (),
    )


def _count(endings: Iterable[Ending]) -> dict[Ending, int]:
    counted = Counter(endings)
    return {ending: counted[ending] for ending in ENDINGS}


def _first_attempts(trials: Sequence[TrialLine], broken: int) -> dict[Ending, int]:
    counts = _count(trial.first or "not_run" for trial in trials)
    counts["not_run"] += broken
    return counts


def _task_lines(record: RunRecord, trials: Sequence[TrialLine]) -> tuple[TaskLine, ...]:
    by_task: dict[str, list[Ending]] = {task: [] for task in record.plan.trials}
    for trial in trials:
        by_task[trial.task].append(trial.ending)
    return tuple(TaskLine(task=task, asked=len(ends), endings=_count(ends)) for task, ends in by_task.items() if ends)


def _pass_at_k(tasks: Sequence[TaskLine], ks: Sequence[int]) -> PassAtK:
    judged = [(sum(task.endings[e] for e in JUDGED), task.endings["passed"]) for task in tasks]
    some = [(n, passed) for n, passed in judged if n]
    return PassAtK(
        judged=dict(pass_at_k(some, ks)),
        strict=dict(pass_at_k([(task.asked, task.endings["passed"]) for task in tasks], ks)),
        tasks=len(some),
        tasks_asked=len(tasks),
    )


def _limit_lines(trials: Iterable[TrialLine], fired: Counter[tuple[FiredKind, Cause]]) -> tuple[LimitLine, ...]:
    ended = [(trial.limit.kind, trial.limit.cause, trial.reward) for trial in trials if trial.limit is not None]
    trials_of = Counter((kind, cause) for kind, cause, _ in ended)
    masked = Counter((kind, cause) for kind, cause, reward in ended if reward is None)
    return tuple(
        LimitLine(kind=key[0], cause=key[1], attempts=n, trials=trials_of[key], masked=masked[key])
        for key, n in fired.most_common()
    )


def spread(seconds: Sequence[float]) -> Spread:
    """Nearest-rank percentiles: each is a value that was measured. ``seconds`` is not empty."""
    ordered = sorted(seconds)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(count=len(ordered), p50=rank(0.5), p95=rank(0.95), max=ordered[-1])


def report_json(report: Report) -> bytes:
    """The report as JSON, for programs."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
