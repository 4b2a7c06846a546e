"""``proofbox template``: list, import, show and remove templates."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proofbox.cli import parse

if TYPE_CHECKING:
    from proofbox.model.template import Template


@click.group()
def template() -> None:
    """Templates: what every sandbox of one starts from, named by digest. `host` is always there."""


@template.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(as_json: bool) -> None:
    """Lists the templates of this user, `host` first."""
    import msgspec

    from proofbox.templates import store

    kept = store.open_store()
    found = [kept.resolve("host"), *kept.list()]
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        click.echo(f"{one.name:<{width}}  {one.digest}  {_what(one)}")


@template.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--name", required=True, help="What it shall be called: a-z 0-9 . _ / -.")
@click.option("--cwd", default="/", show_default=True, help="Where commands start.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse.parsed(parse.environment),
    help="Its environment; repeatable (default: a usual PATH).",
)
def import_(path: Path, name: str, cwd: str, env: dict[str, str]) -> None:
    """Takes a root file system, a directory or a tar archive, into the store.

    The same content has the same digest. An existing NAME stands for the new one afterwards. Safe to repeat.
    """
    from proofbox.templates import store

    kept = store.open_store()
    take = kept.import_directory if stat.S_ISDIR(path.stat().st_mode) else kept.import_tar
    made = take(path, name, env=env or None, cwd=cwd)
    click.echo(f"{made.name}  {made.digest}")
    for key, value in sorted(made.facts.items()):
        click.echo(f"  {key}: {value}")


@template.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(name: str, as_json: bool) -> None:
    """Shows what NAME (or a digest) is made of."""
    import msgspec

    from proofbox.templates import store

    found = store.open_store().resolve(name)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    click.echo(f"{found.name}  {found.digest}")
    click.echo(f"  user: {found.user}\n  cwd: {found.cwd}")
    for key, value in sorted(found.env.items()):
        click.echo(f"  env: {key}={value}")
    for layer in found.layers:
        click.echo(f"  layer: {layer.target} from {layer.source}")
    for key, value in sorted(found.facts.items()):
        click.echo(f"  {key}: {value}")


@template.command()
@click.argument("name")
def remove(name: str) -> None:
    """Removes NAME, and what it stood for with its last name. One that a live process uses stays."""
    from proofbox.templates import store

    store.open_store().remove(name)
    click.echo(f"removed {name}")


def _what(found: Template) -> str:
    facts = found.facts
    parts = [facts[key] for key in ("id", "distribution", "version", "version_id", "source") if key in facts]
    if "packages" in facts:
        parts.append(f"{facts['packages']} packages")
    return " ".join(parts)
