"""``proofbox report`` and ``proofbox runs``."""

from __future__ import annotations

from pathlib import Path

import click

OUT = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs lie (default: $PROOFBOX_RUNS, else ./proofbox-runs).",
)


@click.command()
@click.argument("run", default="latest", metavar="[RUN]")
@OUT
@click.option("--all-tasks", is_flag=True, help="A line for every task.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every trial.")
def report(run: str, out: Path | None, all_tasks: bool, as_json: bool) -> None:
    """Shows the report of RUN (a name, a path, or by default the latest), also while it goes on."""
    from proofbox.store.render import render
    from proofbox.store.report import read_report, report_json
    from proofbox.store.runs import Store

    found = read_report(Store(out).open(run))
    click.echo(report_json(found) if as_json else render(found, all_tasks=all_tasks), nl=False)


@click.command()
@OUT
def runs(out: Path | None) -> None:
    """Lists the runs that are kept, oldest first."""
    from proofbox.errors import StoreFailed
    from proofbox.store.runs import Store

    kept = Store(out)
    for name in kept.names():
        try:
            record = kept.open(name).record()
        except StoreFailed as broken:
            click.echo(f"{name}  {broken}")
            continue
        config = record.config
        click.echo(
            f"{name}  {config.tasks}, agent {config.agent}, {record.plan.asked} trials, runtime {record.host.runtime}"
        )
