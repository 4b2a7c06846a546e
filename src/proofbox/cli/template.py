"""``proofbox template``: list, import, pull, show and remove templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from proofbox.cli import parse
from proofbox.cli.build import build, check, lock
from proofbox.cli.gc import told

if TYPE_CHECKING:
    from proofbox.model.template import Template


NAMED = "What it shall be called: a-z 0-9 . _ / -."


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
        old = " (out of date: packages of this host have changed)" if store.outdated(kept, one) else ""
        click.echo(f"{one.name:<{width}}  {one.digest}  {_what(one)}{old}")


@template.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--name", required=True, help=NAMED)
@click.option("--cwd", help="Where commands start (default: as the image says, or /).")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse.parsed(parse.environment),
    help="Over the image's environment, or instead of a usual PATH; repeatable.",
)
@click.option("--image", "reference", metavar="NAME", help="Which one, where PATH holds several images.")
@click.option("--debootstrap", "suite", metavar="SUITE", help="Instead of PATH: a Debian suite from a mirror.")
@click.option("--mirror", metavar="URL", help="With --debootstrap: where its packages come from.")
@click.option("--include", multiple=True, metavar="PACKAGE", help="With --debootstrap: one package more; repeatable.")
def import_(
    path: Path | None,
    name: str,
    cwd: str | None,
    env: dict[str, str],
    reference: str | None,
    suite: str | None,
    mirror: str | None,
    include: tuple[str, ...],
) -> None:
    """Takes a root file system or an image into the store: a directory or an archive of it.

    A root file system is a directory or a tar; an image is an OCI image layout, or what `docker save` wrote. The
    same content has the same digest. An existing NAME stands for the new one afterwards. Safe to repeat.
    """
    from proofbox.templates import store
    from proofbox.templates.bootstrap import bootstrap
    from proofbox.templates.images import import_path

    if (path is None) == (suite is None):
        raise click.UsageError("either PATH or --debootstrap SUITE is needed")
    kept = store.open_store()
    if suite is not None:
        _tell(bootstrap(kept, suite, name, mirror=mirror, include=include))
    elif path is not None:
        _tell(import_path(kept, path, name, reference=reference, env=env or None, cwd=cwd))


@template.command()
@click.argument("reference")
@click.option("--name", required=True, help=NAMED)
def pull(reference: str, name: str) -> None:
    """Takes an image of a registry into the store: REFERENCE is as in `docker pull`, and needs the program skopeo.

    It is pulled once for each digest, however many ask for it. A registry on this machine may be one without TLS.
    """
    from proofbox.templates import images, store

    _tell(images.pull(store.open_store(), reference, name))


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


@template.command()
def gc() -> None:
    """Removes what no name leads to any more: templates, layers, kept steps of builds, images of machines.

    What a living process uses stays. Safe to repeat, to run beside all else, and to be killed. `proofbox gc` does this,
    and removes what dead processes have left besides.
    """
    from proofbox.templates import store

    told(store.open_store().collect())


template.add_command(build)
template.add_command(check)
template.add_command(lock)


def _tell(made: Template) -> None:
    click.echo(f"{made.name}  {made.digest}")
    for key, value in sorted(made.facts.items()):
        click.echo(f"  {key}: {value}")


def _what(found: Template) -> str:
    facts = found.facts
    parts = [facts[key] for key in ("id", "distribution", "version", "version_id", "source") if key in facts]
    if "snapshot_of" in facts:
        parts.append(f"snapshot of sandbox {facts['snapshot_of']}")
    if "packages" in facts:
        parts.append(f"{facts['packages']} packages")
    return " ".join(parts)
