"""The root command, and what becomes of errors: one message and no traceback, a status that tells them apart."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from proofbox.errors import InvalidInput, ProofboxError

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
HARNESS: Final = 125
"""Of `proofbox sandbox`: every failure that is not the command's own, so that the two cannot be mixed up."""
FILES: Final = 1 << 20
"""Open files that are enough for everything."""

COMMANDS: Final = {
    "run": ("proofbox.cli.run:run", "Run a task set and judge every candidate in a sandbox of its own."),
    "report": ("proofbox.cli.report:report", "Show the report of a run."),
    "runs": ("proofbox.cli.report:runs", "List the runs that are kept."),
    "demo": ("proofbox.cli.demo:demo", "Judge the bundled candidates, each bad in its own way."),
    "sandbox": ("proofbox.cli.sandbox:sandbox", "Open a sandbox and run something in it."),
    "template": ("proofbox.cli.template:template", "List, import and show templates."),
    "doctor": ("proofbox.cli.doctor:doctor", "Say what this host can isolate and limit, and what it lacks."),
    "gc": ("proofbox.cli.gc:gc", "Remove what processes that died have left behind."),
}
"""Where each command is and its line in the list, which is shown without importing any of them."""


class Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """None if there is no command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Prints the version of the installed package and ends."""
    if value and not ctx.resilient_parsing:
        from importlib import metadata

        click.echo(f"proofbox {metadata.version('proofbox')}")
        ctx.exit()


@click.group(
    cls=Lazy, name="proofbox", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=show_version, help="Show the version."
)
def app() -> None:
    """Runs code that a model wrote, in isolation, and gives scores that can be trusted."""


def invoke(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit status. Messages go to standard error."""
    _open_as_many_as_allowed()
    own = HARNESS if argv[:1] == ["sandbox"] else None
    try:
        status = app.main(args=list(argv), prog_name="proofbox", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.ClickException as wrong:
        where = wrong.ctx.command_path if isinstance(wrong, click.UsageError) and wrong.ctx else "proofbox"
        click.echo(f"proofbox: {wrong.format_message()} (`{where} --help` shows what there is)", err=True)
        return own or wrong.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`proofbox ... | head`). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return PIPE_CLOSED
    except BaseExceptionGroup as several:
        failed = _failed(several)
        return own or failed
    except (ProofboxError, OSError, RuntimeError) as error:
        failed = _failed(error)
        return own or failed
    return status if isinstance(status, int) else 0


def _open_as_many_as_allowed() -> None:
    """Raises the soft limit on open files towards the hard one: the usual 1024 is for programs that call select(2), and
    would end at some three hundred sandboxes. Commands in sandboxes have a limit of their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if 0 <= soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # as it is will do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _failed(error: BaseException) -> int:
    """Says what failed. A group of one is what is in it: task groups wrap even a single error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        status = max(_failed(inner) for inner in error.exceptions)
    elif isinstance(error, ProofboxError | OSError):
        code = f"{error.code}: " if isinstance(error, ProofboxError) else ""
        click.echo(f"proofbox: {code}{error}", err=True)
        status = USAGE if isinstance(error, InvalidInput) else FAILED
    else:
        from proofbox.host.remedies import explain, is_threadless

        if not is_threadless(error):
            raise error
        click.echo(f"proofbox: {'; '.join(explain(str(error)))}", err=True)
        status = FAILED
    return status
