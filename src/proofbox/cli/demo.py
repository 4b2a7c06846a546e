"""``proofbox demo``: candidates that are wrong, slow, greedy or dishonest, and how each is told apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proofbox.cli import options
from proofbox.cli.report import OUT

if TYPE_CHECKING:
    from proofbox.model.spec import Level
    from proofbox.store.report import Report, TrialLine
    from proofbox.tasks.demo import Demo


@click.command()
@click.option(
    "-j", "--concurrency", "jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Trials at a time."
)
@options.isolation
@OUT
def demo(out: Path | None, **given: Any) -> int:
    """Judges the bundled candidates for one function, and shows how each ended and why.

    The exit status is 0 if each ended as it has to, else 1.
    """
    import anyio

    from proofbox.tasks.demo import DEMOS

    report, shown, level = anyio.run(_judge, out, given)
    lines = {line.task: line for line in report.trials}
    click.echo(_table(shown, lines))
    for one in DEMOS:
        if one not in shown:
            click.echo(f"not shown: {one.name} ({one.does}): nothing on this host enforces the limit {one.limit}")
    surprising = [one.name for one in shown if not _as_expected(one, lines[f"demo/{one.name}"], level)]
    if surprising:
        click.echo(f"not as it has to be: {', '.join(surprising)}")
    else:
        click.echo(f"all {len(shown)} ended as they have to: {_counts(report)}")
    click.echo(f"traces: {report.path}")
    return 1 if surprising else 0


async def _judge(out: Path | None, given: dict[str, Any]) -> tuple[Report, list[Demo], Level]:
    from proofbox.agent.builtin import SamplesAgent
    from proofbox.cli.progress import display
    from proofbox.model.limits import Limits
    from proofbox.model.run import RunConfig
    from proofbox.store.runs import Store
    from proofbox.tasks.demo import DEMOS
    from proofbox.trial.facts import host_facts
    from proofbox.trial.run import run_tasks
    from proofbox.verify.function import FunctionVerifier

    isolation = {name: given[name] for name in ("runtime", "level", "allow_unisolated")}
    config = RunConfig(
        tasks="demo", agent="samples", jobs=given["jobs"], limits=given["limits"] or Limits(), **isolation
    )
    async with (
        options.local_host(**isolation) as host,
        FunctionVerifier(host, limits=config.limits) as verifier,
    ):
        shown = [one for one in DEMOS if one.can_be_shown(host.probe.enforces)]
        emulated = host.probe.facts.get("platform") == "tcg"
        tasks = [one.task(host.probe.enforces, emulated=emulated) for one in shown]
        agent = SamplesAgent({task.id: [one.completion] for task, one in zip(tasks, shown, strict=True)})
        at_once = min(config.jobs, verifier.at_once)
        facts = await host_facts(host, tasks, config.limits, sandboxes=at_once)
        with display(quiet=False) as show:
            report = await run_tasks(config, tasks, agent, verifier, facts, Store(out), on_event=show)
        return report, shown, host.level


def _table(shown: list[Demo], lines: dict[str, TrialLine]) -> str:
    from proofbox.store.render import printable

    rows = [("candidate", "what it does", "ending", "why")]
    for one in shown:
        line = lines[f"demo/{one.name}"]
        ending = f"{line.ending} ({line.limit.kind})" if line.limit else line.ending
        rows.append((one.name, one.does, ending, printable(line.reason, 100)))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def _as_expected(one: Demo, line: TrialLine, level: Level) -> bool:
    return one.ends_so(line.ending, line.limit.kind if line.limit else None, level)


def _counts(report: Report) -> str:
    return ", ".join(f"{count} {ending.replace('_', ' ')}" for ending, count in report.endings.items())
