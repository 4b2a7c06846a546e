"""``proofbox sandbox run`` and ``proofbox sandbox shell``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import click

from proofbox.cli import options, parse

if TYPE_CHECKING:
    from proofbox.model.outcome import HitLimit
    from proofbox.sandbox.api import Sandbox
    from proofbox.sandbox.commands import Command
    from proofbox.sandbox.result import CommandResult

HARNESS: Final = 125
LIMIT: Final = 124
"""As timeout(1)."""
SHELL: Final = "if command -v bash >/dev/null 2>&1; then exec bash -i; fi; exec sh -i"


@click.group()
def sandbox() -> None:
    """Opens a sandbox, runs one command or a shell in it, and destroys it.

    The exit status is the command's own, or 128 plus the number of the signal that ended it. 124: a limit ended it.
    125: the command has no status, since no sandbox could be had, it was lost, or the request makes no sense; a message
    says which.
    """


def _box_options(command: Any) -> Any:
    for option in (
        click.option(
            "--volume",
            "volumes",
            multiple=True,
            metavar="SOURCE:TARGET",
            callback=parse.parsed(parse.volumes),
            help="A path of the host, read-only.",
        ),
        click.option(
            "--env",
            multiple=True,
            metavar="NAME=VALUE",
            callback=parse.parsed(parse.environment),
            help="Added to the template's; repeatable.",
        ),
        click.option("--cwd", metavar="PATH", help="Where it starts (default: the template's)."),
        click.option("--user", metavar="USER", help="Who it runs as: a name or uid (default: the template's)."),
        click.option(
            "--network",
            type=click.Choice(["none", "host"]),
            default="none",
            show_default=True,
            help="`host` shares this host's: for building templates.",
        ),
    ):
        command = option(command)
    return options.isolation(command)


@contextlib.asynccontextmanager
async def _open(template: str, given: dict[str, Any]) -> AsyncIterator[Sandbox]:
    async with (
        options.local_host(given["runtime"], given["level"], given["allow_unisolated"]) as host,
        host.open_sandbox(
            template,
            limits=given["limits"],
            network=given["network"],
            user=given["user"],
            cwd=given["cwd"],
            env=given["env"],
            volumes=given["volumes"],
        ) as box,
    ):
        yield box


@sandbox.command()
@click.argument("template")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@_box_options
@click.option(
    "--timeout", metavar="TIME", callback=parse.parsed(parse.seconds), help="Wall time of the command, as 30s."
)
@click.option("-i", "--stdin", is_flag=True, help="Hand on what comes in on standard input.")
@click.option("-s", "--shell", is_flag=True, help="COMMAND is one shell text.")
@click.option(
    "--upload",
    "uploads",
    multiple=True,
    metavar="DIR:PATH",
    callback=parse.parsed(parse.transfers),
    help="Before it, what DIR holds goes into the directory PATH inside; repeatable.",
)
@click.option(
    "--download",
    "downloads",
    multiple=True,
    metavar="PATH:DIR",
    callback=parse.parsed(parse.transfers),
    help="After it, however it ended, what PATH inside holds goes into the new directory DIR; repeatable.",
)
def run(template: str, command: tuple[str, ...], timeout: float | None, stdin: bool, shell: bool, **given: Any) -> int:
    """Runs COMMAND in a new sandbox of TEMPLATE and streams its output, byte for byte.

    Of what is uploaded and downloaded no link is followed: one that may lead out of its directory, a device or a FIFO
    is refused, with status 125. A directory that is downloaded is whole or not there.
    """
    import anyio

    argv: str | tuple[str, ...] = " ".join(command) if shell else command
    return anyio.run(_run, template, argv, timeout, stdin, given)


async def _run(
    template: str, command: str | tuple[str, ...], timeout: float | None, stdin: bool, given: dict[str, Any]
) -> int:
    import anyio

    async with _open(template, given) as box:
        for local, path in given["uploads"]:
            await box.files.upload(local, path)
        job = await box.start(command, stdin=stdin, timeout=timeout, keep=None)
        async with anyio.create_task_group() as beside:
            beside.start_soon(_interrupts, job)
            if stdin:
                beside.start_soon(_feed, job)
            result = await _stream(job)
            beside.cancel_scope.cancel()
        for path, local in given["downloads"]:
            await box.files.download(path, local)
    return _status(result)


@sandbox.command()
@click.argument("template", default="host")
@_box_options
def shell(template: str, **given: Any) -> int:
    """Opens a shell in a new sandbox of TEMPLATE, which is destroyed when the shell ends."""
    import anyio

    from proofbox.cli import terminal

    if not terminal.is_interactive():
        raise click.UsageError(
            "a shell needs a terminal; `proofbox sandbox run -i -s TEMPLATE -- sh` reads commands from a pipe"
        )
    return anyio.run(_shell, template, given)


async def _shell(template: str, given: dict[str, Any]) -> int:
    import anyio

    from proofbox.cli import terminal

    given["env"] = {"TERM": os.environ.get("TERM", "xterm"), **given["env"]}
    async with _open(template, given) as box:
        job = await box.start(SHELL, stdin=True, pty=terminal.size(0), keep=None)
        with terminal.raw(0):
            async with anyio.create_task_group() as beside:
                beside.start_soon(_feed, job)
                beside.start_soon(_follow_size, job)
                beside.start_soon(_hang_up, job)
                result = await _stream(job)
                beside.cancel_scope.cancel()
    return _status(result)


@sandbox.command()
@click.argument("template")
@_box_options
@click.option("--full", is_flag=True, help="Every file and setting, not only what can be counted.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all lines instead of a table.")
def fingerprint(template: str, full: bool, as_json: bool, **given: Any) -> int:
    """Tells what a new sandbox of TEMPLATE is, part by part, before anything runs in it.

    Two sandboxes that start alike have the same digests: of one form, on one host. See docs/clean-start.md.
    """
    import anyio

    return anyio.run(_fingerprint, template, full, as_json, given)


async def _fingerprint(template: str, full: bool, as_json: bool, given: dict[str, Any]) -> int:
    import msgspec

    async with _open(template, given) as box:
        found = await box.fingerprint(full)
    if as_json:
        click.echo(msgspec.json.encode({"digest": found.digest, **msgspec.to_builtins(found)}))
        return 0
    for part in found.parts:
        click.echo(f"{part.name:12} {part.digest[:16]} {len(part.lines):7}")
    click.echo(found.digest)
    return 0


async def _stream(job: Command) -> CommandResult:
    from proofbox.cli import terminal

    async for pipe, data in job.output():
        await terminal.show(pipe, data)
    return await job.wait()


async def _feed(job: Command) -> None:
    """Our standard input to the command's, and its end too. Ends quietly when the command has ended before."""
    from proofbox.cli import terminal

    async for data in terminal.typed(0):
        if not await job.send(data):
            return
    await job.send_eof()


async def _follow_size(job: Command) -> None:
    import anyio

    from proofbox.cli import terminal

    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            await job.resize(*terminal.size(0))


async def _hang_up(job: Command) -> None:
    """Our terminal was closed, or we are asked to end: the shell is ended, and then all goes its usual way."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGHUP, signal.SIGTERM) as signals:
        async for _ in signals:
            await job.kill()


async def _interrupts(job: Command) -> None:
    """The first Ctrl-C goes to the command, as in a terminal; after that, and at SIGTERM, it is killed."""
    import anyio

    asked = False
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            if number == signal.SIGINT and not asked:
                asked = True
                await job.signal(signal.SIGINT, "group")
            else:
                await job.kill()


def _status(result: CommandResult) -> int:
    """The exit status that stands for it; what is not the command's own doing is said on standard error."""
    from proofbox.model.outcome import Exited, HitLimit, Killed, Lost, Signaled

    match result.outcome:
        case Exited(code):
            return code
        case Signaled(number):
            return 128 + number
        case HitLimit() as hit:
            click.echo(f"proofbox: {_describe_limit(hit)}", err=True)
            return LIMIT
        case Killed():
            click.echo("proofbox: the command was killed on request", err=True)
            return 128 + signal.SIGKILL
        case Lost(reason, detail):
            click.echo(f"proofbox: sandbox_lost: the sandbox was lost ({reason}) {detail}".rstrip(), err=True)
            return HARNESS


def _describe_limit(hit: HitLimit) -> str:
    used = "" if hit.used is None else f", used {hit.used:g}"
    return f"limit {hit.kind} of {hit.limit:g} ended the command after {hit.elapsed:.3g} s{used}; cause: {hit.cause}"
