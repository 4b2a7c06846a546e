"""``proofbox template build``, ``check`` and ``lock``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proofbox.cli import options, parse

if TYPE_CHECKING:
    from proofbox.build.events import Event
    from proofbox.model.template import Template
    from proofbox.sandbox.host import Host


def _build_options(command: Any) -> Any:
    for option in (
        click.option(
            "--network",
            type=click.Choice(["none", "host"]),
            help="Of the steps that run something (default: none, or as the recipe says).",
        ),
        click.option("--pull", "repull", is_flag=True, help="Look up again what images of registries stand for."),
        click.option(
            "--base",
            "bases",
            multiple=True,
            metavar="IMAGE=TEMPLATE",
            callback=parse.parsed(parse.environment),
            help="Take a template for a base of the Dockerfile; repeatable.",
        ),
        click.option(
            "--build-arg",
            "args",
            multiple=True,
            metavar="NAME=VALUE",
            callback=parse.parsed(parse.environment),
            help="For an ARG; repeatable.",
        ),
        click.option("--target", metavar="STAGE", help="The stage that is the result (default: the last one)."),
        click.option(
            "-f",
            "--file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A Dockerfile, or a recipe that ends with .toml (default: Dockerfile in CONTEXT).",
        ),
    ):
        command = option(command)
    context = click.argument("context", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
    return context(options.isolation(command))


@click.command()
@_build_options
@click.option("-t", "--name", required=True, help="What it shall be called: a-z 0-9 . _ / -.")
@click.option("--no-cache", "fresh", is_flag=True, help="Make every step, whatever is kept.")
def build(context: Path, name: str, fresh: bool, **given: Any) -> None:
    """Builds a template from a Dockerfile or a recipe, in sandboxes of our own; files come from CONTEXT.

    Each step is kept by what it was made from. The result is called NAME when all steps are done.
    """
    import anyio

    made = anyio.run(_build, context, name, fresh, given)
    click.echo(f"{made.name}  {made.digest}")
    if "mutable" in made.facts:
        click.echo(f"  mutable: {made.facts['mutable']}")


@click.command()
@_build_options
def check(context: Path, **given: Any) -> int:
    """Builds twice from scratch and compares: 0 if both are the same, 1 with the paths in which they differ."""
    import anyio

    from proofbox.build.lock import differences

    one = anyio.run(_build, context, None, True, given)
    other = anyio.run(_build, context, None, True, given)
    found = differences(one, other)
    for line in found:
        click.echo(line)
    click.echo("the two builds differ" if found else f"both builds are the same: {one.digest}")
    return 1 if found else 0


@click.command()
@click.argument("name")
def lock(name: str) -> None:
    """Writes down what NAME holds, as JSON: packages and versions, layers, the digest of all files."""
    import msgspec

    from proofbox.build.lock import lock as locked
    from proofbox.templates import store

    click.echo(msgspec.json.format(msgspec.json.encode(locked(store.open_store().resolve(name))), indent=2))


async def _build(context: Path, name: str | None, fresh: bool, given: dict[str, Any]) -> Template:
    import anyio

    from proofbox.build.api import read_recipe
    from proofbox.build.builder import Wanted, build
    from proofbox.sandbox.host import Host

    hosts: list[Host] = []

    async def host() -> Host:
        if not hosts:
            found = await Host.local(given["runtime"], given["level"], allow_unisolated=given["allow_unisolated"])
            hosts.append(found)
        return hosts[0]

    file = given["file"] or context / "Dockerfile"
    recipe = read_recipe(file, target=given["target"], network=given["network"], limits=given["limits"])
    wanted = Wanted(context=context, args=given["args"], bases=given["bases"], fresh=fresh, repull=given["repull"])
    try:
        return await build(recipe, wanted, name, tell=_show, host=host)
    finally:
        with anyio.CancelScope(shield=True):
            for opened in hosts:
                await opened.aclose()


def _show(event: Event) -> None:
    from proofbox.build.events import BasePulled, StepBegan, StepEnded, StepOutput

    match event:
        case StepBegan():
            click.echo(f"[{event.stage} {event.number}/{event.total}] {event.text}", err=True)
        case StepOutput():
            click.echo(event.data, err=True, nl=False)
        case StepEnded():
            click.echo("  kept" if event.kept else f"  {event.seconds:.2f} s", err=True)
        case BasePulled():
            click.echo(f"pulled {event.reference} in {event.seconds:.2f} s", err=True)
