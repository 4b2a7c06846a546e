"""A report as plain text, at most 100 columns. Texts from sandboxes are shown without what a terminal would obey."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from proofbox.model.limits import MIB, Limits
from proofbox.model.outcome import Cause
from proofbox.model.run import InForce, RunRecord
from proofbox.model.text import one_line
from proofbox.model.trace import JUDGED
from proofbox.model.verdict import ENDINGS
from proofbox.store.report import Report

WIDTH: Final = 100
SCOPES: Final = 5
"""Sets of tasks with the same limits that are shown."""
SHOWN: Final = 20
"""Lines of a list that are shown; the JSON has all."""

PHASES: Final = (
    "queue",
    "sandbox",
    "setup",
    "agent",
    "slot",
    "create",
    "start",
    "calls",
    "collect",
    "destroy",
    "verify",
)

_MEANING: Final = {
    "passed": "reward 1",
    "failed": "reward 0: judged, wrong",
    "limit": "reward 0: its own doing; masked: none",
    "infrastructure": "no reward: host, agent or verifier broke",
    "not_run": "no reward: never judged",
}

_CAUSES: Final[dict[Cause, str]] = {
    "task": "its own doing",
    "hung": "blocked: masked by default",
    "host": "the host's: never counts",
    "unknown": "cannot be told: no reward",
}


def render(report: Report, *, all_tasks: bool = False) -> str:
    """The whole report. ``all_tasks`` adds a line for every task, not only for those that were not judged in full."""
    parts = [_head(report), _endings(report), _pass_at_k(report), _limits(report), _failures(report), _broken(report)]
    parts += [_tasks(report, all_tasks), _timings(report), _foot(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def printable(text: str, width: int = WIDTH) -> str:
    """One line of at most ``width`` characters, whatever a candidate wrote."""
    line = one_line(text)
    return line if len(line) <= width else line[: width - 3] + "..."


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows, the first one the heading, in columns; ``align`` has an ``l`` or ``r`` for each."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    lines = (
        "  ".join(c.ljust(w) if a == "l" else c.rjust(w) for c, w, a in zip(row, widths, align, strict=True))
        for row in rows
    )
    return "\n".join(f"  {line}".rstrip()[:WIDTH] for line in lines)


def _head(report: Report) -> str:
    record, host = report.record, report.record.host
    started = datetime.fromtimestamp(record.at, UTC)
    state = {"open": "not closed: still going on, or killed", "cancelled": "cancelled: it can be resumed"}.get(
        report.state, report.state
    )
    versions = ", ".join(f"{name} {version}" for name, version in host.versions.items())
    tasks, agent = printable(record.config.tasks, 60), printable(record.config.agent, 60)
    lines = [
        f"run {report.run}: {state}",
        f"{tasks}, {len(record.plan.trials)} tasks, agent {agent}, started {started:%Y-%m-%d %H:%M:%S} UTC",
        f"runtime {host.runtime} (level {host.level}), {record.config.jobs} at a time; {versions}",
        *(f"template {name} {digest}" for name, digest in host.templates.items()),
        f"task set {record.task_set}",
        *_in_force(record),
        *_apart(report),
        *(f"note: {printable(note, 3 * WIDTH)}" for note in host.notes),
    ]
    if record.samples:
        lines.append(f"samples {record.samples}")
    if report.why:
        lines.append(f"why: {printable(report.why, 4 * WIDTH)}")
    return _wrapped(lines)


def _apart(report: Report) -> list[str]:
    """How the attempts' sandboxes were kept apart: one line where all were alike, as they should be."""
    lines = []
    for line in report.isolations:
        found = line.isolation
        words = [f"own namespaces {' '.join(found.own) or 'none seen'}"]
        words += [f"shared {' '.join(found.shared)}"] if found.shared else []
        words += [] if found.seccomp is None else ["system calls filtered" if found.seccomp == 2 else "no filter"]
        words += [] if found.capabilities is None else [f"{len(found.capabilities)} capabilities in reach"]
        words += [f"platform {printable(found.platform, 60)}"] if found.platform else []
        words += [f"kernel {printable(found.kernel, 60)}"] if found.kernel else []
        head = f"isolation ({found.runtime}, level {found.level}) of {line.attempts} attempts"
        lines.append(f"{head}: {', '.join(words)}")
    if len(lines) > 1:
        lines.append(f"note: sandboxes were kept apart in {len(lines)} different ways")
    return lines


def _in_force(record: RunRecord) -> list[str]:
    """Two lines for each set of tasks with the same limits."""
    lines = [] if record.limits else [f"limits {_limits_of(record.host.limits) or 'none'}"]
    for scope in record.limits[:SCOPES]:
        lines.append(f"limits {_limits_of(scope.limits) or 'none'}{whose(scope, record.tasks)}")
        walls = ", ".join(f"{kind} {value:g}" for kind, value in scope.walls.asked().items()) or "no walls"
        lines.append(f"in seconds: {walls}, a candidate's calls {scope.calls:g}")
    return lines


def whose(scope: InForce, tasks: int) -> str:
    """Which of so many tasks these limits are for; nothing where they are for all."""
    return "" if len(scope.tasks) == tasks else f" ({len(scope.tasks)} tasks, such as {printable(scope.tasks[0], 40)})"


def _limits_of(limits: Limits) -> str:
    sizes = ("memory", "memory_reserve", "process_memory", "disk", "output")
    texts = ((kind, getattr(limits, kind)) for kind in limits.asked())
    return ", ".join(f"{kind} {value / MIB:g} MiB" if kind in sizes else f"{kind} {value:g}" for kind, value in texts)


def _wrapped(lines: Iterable[str]) -> str:
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def _endings(report: Report) -> str:
    rows = [("ending", "trials", "share", "first attempt", "")]
    for ending in ENDINGS:
        n = report.endings[ending]
        share = f"{n / report.asked:.1%}" if report.asked else "-"
        rows.append((ending, str(n), share, str(report.first_attempt[ending]), _MEANING[ending]))
    rows.append(("asked for", str(report.asked), "", "", ""))
    return table(rows, "lrrrl")


def _pass_at_k(report: Report) -> str:
    found = report.pass_at_k
    names = list(dict.fromkeys([*found.judged, *found.strict]))
    if not names:
        return "pass@k: none, for no k has every task that many trials"
    rows = [("", "judged", "strict")]
    rows += [(name, _figure(found.judged.get(name)), _figure(found.strict.get(name))) for name in names]
    missing = report.asked - report.judged
    note = f"judged: over {report.judged} judged trials of {found.tasks} of {found.tasks_asked} tasks. "
    if missing:
        note += f"strict: the {missing} that were not judged count as not passed"
        note += ", broken lines apart, which belong to no task." if report.broken else "."
    else:
        note += "strict is the same: everything was judged."
    if (left_out := report.record.tasks - len(report.record.plan.trials)) > 0:
        note += f" No trial was asked for of {left_out} other tasks of the set; they are in neither figure."
    return table(rows, "lrr") + "\n" + textwrap.indent(textwrap.fill(note, WIDTH - 2), "  ")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _limits(report: Report) -> str:
    if not report.limits:
        return ""
    rows = [("limit that fired", "cause", "attempts", "trials ended", "masked", "")]
    for line in report.limits:
        counts = (str(line.attempts), str(line.trials), str(line.masked))
        rows.append((line.kind, line.cause, *counts, _CAUSES[line.cause]))
    return table(rows, "llrrrl")


def _failures(report: Report) -> str:
    if not report.failures:
        return ""
    rows = [("attempts", "failure", "blame", "phase", "reason", "for instance")]
    rows += [
        (str(f.attempts), f.code, f.blame, f.phase, printable(f.reason, 12), printable(f.example, 60))
        for f in report.failures[:SHOWN]
    ]
    return table(rows, "rlllll") + _more(len(report.failures))


def _more(n: int) -> str:
    return f"\n  ... and {n - SHOWN} more: the JSON report has all" if n > SHOWN else ""


def _broken(report: Report) -> str:
    if not report.broken:
        return ""
    rows = [("line", "of the samples cannot be used (counted as not run)")]
    rows += [(str(b.line), printable(b.message, 85)) for b in report.broken[:SHOWN]]
    return table(rows, "rl") + _more(len(report.broken))


def _tasks(report: Report, all_tasks: bool) -> str:
    lines = [t for t in report.tasks if all_tasks or sum(t.endings[e] for e in JUDGED) < t.asked]
    if not lines:
        return ""
    rows = [("task" if all_tasks else "task not judged in full", "asked", *ENDINGS)]
    shown = lines if all_tasks else lines[:SHOWN]
    rows += [(printable(t.task, 40), str(t.asked), *(str(t.endings[e]) for e in ENDINGS)) for t in shown]
    return table(rows, "lrrrrrr") + ("" if all_tasks else _more(len(lines)))


def _timings(report: Report) -> str:
    if not report.timings:
        return ""
    known = [phase for phase in PHASES if phase in report.timings]
    rows = [("ms", "P50", "P95", "max", "attempts")]
    for phase in known + sorted(set(report.timings) - set(known)):
        s = report.timings[phase]
        rows.append((printable(phase, 30), _ms(s.p50), _ms(s.p95), _ms(s.max), str(s.count)))
    return table(rows, "lrrrr")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _foot(report: Report) -> str:
    attempts = f"{report.attempts} attempts for {report.asked} trials"
    if report.interrupted:
        attempts += f", {report.interrupted} of them interrupted"
    speed = f"{report.judged / report.wall:.1f} judged a second" if report.wall > 0 else ""
    overhead = (
        ""
        if report.overhead is None
        else (f"overhead {1000 * report.overhead:.2f} ms of CPU an attempt, log written in {report.disk:.2f} s")
    )
    lines = [attempts, ", ".join(x for x in (f"{report.wall:.1f} s", speed, overhead) if x)]
    lines.append(f"{report.unclean_starts} attempts met an unclean start")
    if report.torn:
        lines.append(f"the log ended in a cut line of {report.torn} bytes, which was left out")
    return _wrapped(lines) + f"\ntraces: {report.path}"
