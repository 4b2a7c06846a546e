"""``python -m proofbox.cli.reference``: the whole command line as one page, docs/cli.md."""

from __future__ import annotations

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


def pages(command: click.Command, parent: click.Context | None = None, name: str | None = None) -> Iterator[str]:
    """One section for the command and for each one below it."""
    context = click.Context(command, info_name=name or command.name, parent=parent, max_content_width=100)
    yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from pages(found, context, inner)


def render() -> str:
    """The page. The same commands give the same text, whatever the terminal is."""
    return "\n".join([HEAD, *pages(app)])


if __name__ == "__main__":
    click.echo(render(), nl=False)
