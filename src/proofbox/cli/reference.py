"""``python -m proofbox.cli.reference``: the whole command line as one page, docs/cli.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from proofbox.cli.app import app

HEAD = """\
# The command line

This page is what the commands say of themselves: `scripts/docs` writes it, and a test holds it in step. Sizes are
written `512M`, times `30s`. Errors are one message on standard error and no traceback: `proofbox: CODE: what failed, on
what, what to do`. The exit status is 0, 1 (something failed), 2 (the request makes no sense) or 130 (Ctrl-C), where a
command says nothing else.
"""


def pages(command: click.Command, path: str) -> Iterator[str]:
    """A section for the command and each one below it. Not click's own layout: that differs between its versions."""
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    options = [param for param in command.params if isinstance(param, click.Option)]
    usage = [path, *(["[OPTIONS]"] if options else []), *(_placeholder(param) for param in arguments)]
    if isinstance(command, click.Group):
        usage.append("COMMAND ...")
    yield f"## `{path}`\n"
    yield f"`{' '.join(usage)}`\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if options:
        yield "\n".join(_option(param) for param in options) + "\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from pages(inner, f"{path} {name}")


def _placeholder(param: click.Parameter) -> str:
    if param.metavar:
        return param.metavar
    if isinstance(param.type, click.Choice):
        return "|".join(str(choice) for choice in param.type.choices)
    if isinstance(param, click.Argument):
        return (param.name or "").upper()
    return {"integer range": "N", "text": "TEXT", "file": "FILE", "directory": "DIRECTORY"}.get(
        param.type.name, "VALUE"
    )


def _option(param: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in param.opts)
    value = "" if param.is_flag else f" `{_placeholder(param)}`"
    shown = f" (default: {param.default})" if param.show_default and param.default is not None else ""
    return f"- {names}{value}: {param.help or ''}{shown}"


def render() -> str:
    """The page. The same commands give the same text, whatever the terminal is."""
    return "\n".join([HEAD, *pages(app, "proofbox")])


if __name__ == "__main__":
    click.echo(render(), nl=False)
