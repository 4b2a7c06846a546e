"""``proofbox doctor``: what this host can isolate and limit, and the exact remedy for what it lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from proofbox.cli.findings import Findings, RuntimeFindings, UncleanStarts
    from proofbox.runtime.contract import Missing, Probe

DEFAULT_LEVEL: Final = "container"
LAST: Final = {"oci": 1, "process": 2}
"""Told after the others: the first OCI runtime that there is, which is one of them, and what isolates nothing."""


@click.command()
@click.option("--runtime", metavar="NAME", help="Only this one.")
@click.option(
    "--concurrency",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Whether so many sandboxes fit at one time, and if not, what limits them.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text: see docs/doctor.md.")
def doctor(runtime: str | None, concurrency: int | None, as_json: bool) -> int:
    """Asks each runtime what it can do here; most run a real sandbox to prove it, nothing that is kept is believed.

    The exit status is 0 if a sandbox of the default level (container) can be had, or, with --runtime, if that one is
    usable; with --concurrency, if it can be had so many times at once; else 1.
    """
    import anyio
    import msgspec

    from proofbox.cli.findings import describe, described_items, summary, unclean

    starts = _unclean()  # before it is tried what this process can still open

    async def ask() -> Findings:
        lacking = await _lacking()
        entries: list[RuntimeFindings] = []
        if not as_json:
            click.echo("\n".join([*described_items(lacking), ""]) if lacking else "", nl=bool(lacking))
        async for entry in _examined(runtime, concurrency):
            if not as_json:  # as soon as it is known: some take seconds
                click.echo(describe(entry, entries, concurrency))
            entries.append(entry)
        return _found(entries, lacking, starts, runtime, concurrency)

    found = anyio.run(ask)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        click.echo(unclean(found.unclean_starts) + summary(found, runtime))
    return 0 if found.ok else 1


async def _lacking() -> list[Missing]:
    from proofbox.cli.places import owned, written

    return [*written(), *await owned()]


def _unclean() -> UncleanStarts | None:
    from proofbox.cli.findings import UncleanStarts
    from proofbox.host.unclean import noted

    try:
        return UncleanStarts.of(noted())
    except OSError:
        return None  # why is among what is missing


def _found(
    entries: list[RuntimeFindings],
    lacking: list[Missing],
    starts: UncleanStarts | None,
    only: str | None,
    concurrency: int | None,
) -> Findings:
    from proofbox.cli.findings import Findings, items
    from proofbox.model.spec import LEVELS

    wanted = LEVELS.index(DEFAULT_LEVEL)
    serving = [each for each in entries if each.usable]
    if not only:  # as they are selected where nobody is named
        serving = [each for each in serving if not each.by_name_only and LEVELS.index(each.level or "none") >= wanted]
    serving.sort(key=lambda each: LEVELS.index(each.level or "none"))
    fits = not concurrency or any(each.holds is None or each.holds >= concurrency for each in serving[:1])
    return Findings(
        ok=bool(serving) and fits and not lacking,
        chosen=serving[0].name if serving else None,
        concurrency=concurrency,
        missing=items(lacking),
        unclean_starts=starts,
        runtimes=tuple(entries),
    )


async def _examined(only: str | None, concurrency: int | None) -> AsyncIterator[RuntimeFindings]:
    from time import perf_counter

    from proofbox.cli.findings import RuntimeFindings, items
    from proofbox.errors import Refused, StoreFailed
    from proofbox.host.remedies import explain
    from proofbox.runtime import registry
    from proofbox.runtime.contract import Missing

    # `fake` scripts faults for tests: it isolates nothing and is no answer to what this host can do.
    names = [each for each in registry.names() if each != "fake"]
    names.sort(key=lambda each: LAST.get(each, 0))
    for name in [only] if only else names:
        begun = perf_counter()
        missing: Iterable[Missing]
        try:
            probe = await registry.probe(name, fresh=True)
            seconds = perf_counter() - begun
            yield _entry(name, probe, seconds, concurrency)  # in no thread: there may be none left to have
            continue
        except Refused as refused:
            missing = map(Missing.of, refused.missing)
        except StoreFailed as failed:
            missing = [Missing(*explain(str(failed)))]
        yield RuntimeFindings(name=name, missing=items(missing), seconds=perf_counter() - begun)


def _entry(name: str, probe: Probe, seconds: float, concurrency: int | None) -> RuntimeFindings:
    """What it found, and what limits how many sandboxes fit, where there are any."""
    from proofbox.cli.findings import Limit, RuntimeFindings, items
    from proofbox.host.owner import state_dir
    from proofbox.host.room import rooms

    found = rooms(probe.takes, state_dir()) if probe.usable else ()
    return RuntimeFindings(
        name=name,
        usable=probe.usable,
        level=probe.level,
        by_name_only=probe.by_name_only,
        enforces=tuple(sorted(probe.enforces)),
        networks=tuple(sorted(probe.networks)),
        users=probe.users,
        missing=items(probe.missing),
        notes=probe.notes,
        differs=probe.differs,
        facts=probe.facts,
        seconds=seconds,
        holds=min((room.holds for room in found if room.hard), default=None),
        limits=tuple(Limit.of(room, concurrency) for room in found),
    )
