"""What ``proofbox doctor`` found: its JSON, documented in docs/doctor.md, and the text for people."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from proofbox.host.room import Room
from proofbox.host.unclean import UncleanStarts as Noted
from proofbox.model.limits import LIMIT_KINDS
from proofbox.model.spec import Level
from proofbox.runtime.contract import Missing

FORMAT: Final = 1
INDENT: Final = 15
"""Columns before what a line says."""
WIDEST, NARROWEST = 120, 60
DETAILS: Final = ("cgroup ", "cgroup_")
"""Facts that only the JSON tells: where in the file system each control group is."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is missing; ``remedy`` is the command or setting that brings it, empty if none is known."""

    what: str
    remedy: str


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of this host: see ``proofbox.host.room.Room``. ``holds``: so many sandboxes more."""

    what: str
    limit: int
    used: int
    each: int
    holds: int
    hard: bool
    remedy: str

    @classmethod
    def of(cls, room: Room, sandboxes: int | None) -> Limit:
        """The remedy is for so many sandboxes, or twice as many as fit."""
        return cls(
            what=room.what,
            limit=room.limit,
            used=room.used,
            each=room.each,
            holds=room.holds,
            hard=room.hard,
            remedy=room.raised(max(sandboxes or 0, 2 * room.holds)),
        )


class RuntimeFindings(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime. ``seconds``: what the probe took; ``holds``: how many sandboxes fit, by the tightest hard limit."""

    name: str
    usable: bool = False
    level: Level | None = None
    by_name_only: bool = False
    enforces: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    users: bool = False
    missing: tuple[Item, ...] = ()
    notes: tuple[str, ...] = ()
    differs: dict[str, str] = {}
    facts: dict[str, str] = {}
    seconds: float
    holds: int | None = None
    limits: tuple[Limit, ...] = ()


class UncleanStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start that was not clean: when (ISO 8601), of what, and the first of what differed."""

    at: str
    runtime: str
    template: str
    differences: tuple[str, ...]


class UncleanStarts(msgspec.Struct, frozen=True, kw_only=True):
    """All that are on record: see ``proofbox.host.unclean``."""

    count: int
    since: str | None
    last: UncleanStart | None

    @classmethod
    def of(cls, noted: Noted) -> UncleanStarts:
        """As it is told."""
        if noted.since is None or noted.last is None:
            return cls(count=0, since=None, last=None)
        found = msgspec.structs.asdict(noted.last) | {"at": _moment(noted.last.at)}
        return cls(count=noted.count, since=_moment(noted.since), last=UncleanStart(**found))


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``chosen`` is who makes sandboxes where nobody is named; ``missing`` concerns every runtime;
    ``unclean_starts`` is None where the record cannot be read.
    """

    format: int = FORMAT
    ok: bool
    chosen: str | None
    concurrency: int | None
    missing: tuple[Item, ...]
    unclean_starts: UncleanStarts | None
    runtimes: tuple[RuntimeFindings, ...]


def items(missing: Iterable[Missing]) -> tuple[Item, ...]:
    """As they are told."""
    return tuple(Item(what=item.what, remedy=item.remedy) for item in missing)


def described_items(missing: Iterable[Missing | Item]) -> list[str]:
    """Each with its remedy, which is never broken into lines: it is there to be copied."""
    lines = []
    for item in missing:
        lines += _said("missing", item.what)
        if item.remedy:
            lines.append(f"    {'remedy':<{INDENT - 5}} {item.remedy}")
    return lines


def describe(entry: RuntimeFindings, before: Sequence[RuntimeFindings], concurrency: int | None) -> str:
    """One runtime, as a block of lines that ends with an empty one."""
    name = click.style(entry.name, bold=True)
    if not entry.usable:
        lines = [f"{name}: {click.style('not usable', fg='red')}", *described_items(entry.missing)]
        return "\n".join([*lines, ""])
    lines = [f"{name}: {click.style('usable', fg='green')}, level {entry.level}"]
    twin = next((other for other in before if _same(entry, other)), None)
    if twin is not None:
        return "\n".join([*lines, *_said("is", f"the same as {twin.name}, which see"), ""])
    absent = [kind for kind in LIMIT_KINDS if kind not in entry.enforces]
    lines += _said("enforces", ", ".join(entry.enforces) or "no limit")
    if absent:
        lines += _said("refuses", f"{', '.join(absent)}: nothing enforces these here")
    lines += _said("users", _users(entry))
    lines += described_items(entry.missing)
    lines += _notes(entry)
    lines += _room(entry, concurrency)
    for key, value in sorted(entry.facts.items()):
        if value and not key.startswith(DETAILS):
            lines += _said(key.replace("_", " "), value)
    lines += _said("proved in", f"{entry.seconds:.2f} s")
    return "\n".join([*lines, ""])


def unclean(starts: UncleanStarts | None) -> str:
    """Those that are on record, as a block of lines that ends with an empty one; nothing where there is none."""
    if starts is None or starts.last is None:
        return ""
    last = starts.last
    heading = click.style("unclean starts", bold=True)
    lines = [f"{heading}: {starts.count:,} on this host since {starts.since}; their sandboxes were handed to nobody"]
    lines += _said("last", f"{last.at}, runtime {last.runtime}, template {last.template}")
    lines += [line for each in last.differences for line in _said("differed", each)]
    return "\n".join([*lines, ""])


def summary(found: Findings, only: str | None) -> str:
    """The last lines: what it comes to."""
    chosen = next((entry for entry in found.runtimes if entry.name == found.chosen), None)
    if chosen is None:
        if only:
            return f"Runtime {only} cannot be used on this host; what is missing is named above."
        return "No sandbox of level container (the default) can be made on this host; what is missing is named above."
    lines = [f"Runtime {only} can be used on this host."] if only else []
    if not only:
        lines.append(f"Sandboxes of level container (the default) are made by: {chosen.name}.")
    if found.missing:
        lines.append("But not before what is missing for all runtimes is mended: see the first lines.")
    elif found.concurrency and chosen.holds is not None and chosen.holds < found.concurrency:
        lines.append(f"{found.concurrency} of them at one time do not fit; what limits them is named above.")
    elif found.concurrency:
        lines.append(f"{found.concurrency} of them fit at one time.")
    return "\n".join(lines)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _users(entry: RuntimeFindings) -> str:
    if entry.level == "none":
        return "this host's own" if entry.users else "one: who runs it"
    return "several" if entry.users else "one: the root of the sandbox"


def _notes(entry: RuntimeFindings) -> list[str]:
    differs = [f"{subject}: {why}" for subject, why in entry.differs.items()]
    said = [("note", note) for note in entry.notes] + [("not as Linux", each) for each in differs]
    return [line for word, text in said for line in _said(word, text)]


def _room(entry: RuntimeFindings, concurrency: int | None) -> list[str]:
    """How many fit; and of so many that are asked for, every limit that they would meet."""
    tightest = next((limit for limit in entry.limits if limit.hard), None)
    if tightest is None:
        return []
    lines = _said("room for", f"{tightest.holds:,} sandboxes at one time, by {tightest.what}")
    for limit in entry.limits:
        if concurrency and limit.holds < concurrency:
            numbers = f"{limit.used:,} of {limit.limit:,} are used, each sandbox takes {limit.each:,}"
            kind = "too low" if limit.hard else "may be low"
            lines += _said(kind, f"{limit.what}: enough for {limit.holds:,} ({numbers})")
            lines.append(f"    {'remedy':<{INDENT - 5}} {limit.remedy}")
    return lines


def _same(one: RuntimeFindings, other: RuntimeFindings) -> bool:
    """It is the same program under another name."""
    program = one.facts.get("program")
    return bool(program) and program == other.facts.get("program") and one.level == other.level


def _said(word: str, text: str) -> list[str]:
    """A word in the first column, and what is said of it beside, as wide as the terminal."""
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    room = width - INDENT
    lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
    head = f"  {word:<{INDENT - 3}} "
    if len(head) > INDENT:  # the word is longer than its column: it has a line of its own, unless all fits
        if len(lines) == 1 and len(head) + len(text) <= width:
            return [head + text]
        return [head.rstrip(), *(" " * INDENT + line for line in lines)]
    return [head + lines[0], *(" " * INDENT + line for line in lines[1:])]
