"""The way in from Python: a recipe, or the file that says it, becomes a template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from proofbox.build import dockerfile, toml
from proofbox.build.builder import Wanted, build, quiet
from proofbox.build.events import Tell
from proofbox.build.recipe import Recipe
from proofbox.errors import InvalidInput
from proofbox.model.limits import Limits
from proofbox.model.spec import Level, Network
from proofbox.model.template import Template
from proofbox.sandbox.host import Host


def read_recipe(
    file: Path, *, target: str | None = None, network: Network | None = None, limits: Limits | None = None
) -> Recipe:
    """The recipe of a file: TOML if it is called ``.toml``, else a Dockerfile. What is given goes over what it says.

    Blocks shortly. Raises ``InvalidInput`` with the line.
    """
    if file.suffix == ".toml":
        if target is not None:
            raise InvalidInput(f"{file}: a recipe has one stage, and so no target {target!r}")
        recipe = toml.load(file)
    else:
        try:
            recipe = dockerfile.parse(file.read_text("utf-8"), file.name, target=target)
        except OSError as error:
            raise InvalidInput(f"{file}: {error.strerror}; `--file` names another Dockerfile or recipe") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{file}: {error}; a Dockerfile is text in UTF-8") from error
    return replace(
        recipe, network=network or recipe.network, limits=limits.over(recipe.limits) if limits else recipe.limits
    )


async def build_template(
    source: Recipe | str | os.PathLike[str],
    name: str | None = None,
    *,
    context: str | os.PathLike[str] | None = None,
    args: Mapping[str, str] | None = None,
    bases: Mapping[str, str] | None = None,
    target: str | None = None,
    network: Network | None = None,
    limits: Limits | None = None,
    fresh: bool = False,
    repull: bool = False,
    runtime: str | None = None,
    level: Level = "container",
    tell: Tell | None = None,
) -> Template:
    """Builds a template on this machine: of a recipe, a TOML file that holds one, or a Dockerfile.

    Files come from ``context``, which is the file's own directory where nothing else is said. ``args``, ``bases``,
    ``fresh`` and ``repull`` as in ``Wanted``; ``target``, ``network`` and ``limits`` (of each step) go over what the
    file says. ``tell`` hears what happens. For the rest see ``build``. Safe to repeat.
    """
    if isinstance(source, Recipe):
        if target is not None or network is not None or limits is not None:
            raise InvalidInput("target, network and limits are the recipe's own; change it instead")
        recipe, at = source, context
    else:
        file = Path(source)
        recipe = await anyio.to_thread.run_sync(
            lambda: read_recipe(file, target=target, network=network, limits=limits)
        )
        at = file.parent if context is None else context
    wanted = Wanted(
        context=None if at is None else Path(at), args=args or {}, bases=bases or {}, fresh=fresh, repull=repull
    )
    return await build(recipe, wanted, name, tell=tell or quiet, host=lambda: Host.local(runtime, level))
