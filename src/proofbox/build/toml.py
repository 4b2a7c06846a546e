"""Recipes in TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from proofbox.build.recipe import MODE, Copy, Env, Recipe, Run, Stage, Step, User, Workdir
from proofbox.errors import InvalidInput
from proofbox.model.limits import Limits
from proofbox.model.spec import Network

KINDS: Final = ("run", "copy", "env", "workdir", "user")


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of ``[[steps]]``: exactly one of the first five."""

    run: str | tuple[str, ...] | None = None
    copy: str | tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    workdir: str | None = None
    user: str | None = None
    to: str = "."
    origin: str | None = msgspec.field(default=None, name="from")
    owner: str | None = None
    mode: str | None = None
    network: Network | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    base: str
    steps: tuple[_Step, ...] = ()
    network: Network = "none"
    limits: Limits = msgspec.field(default_factory=Limits)


def load(path: Path) -> Recipe:
    """Reads a recipe file. Raises ``InvalidInput`` for one that is none."""
    try:
        return parse(path.read_text("utf-8"), path.name)
    except OSError as error:
        raise InvalidInput(f"recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"recipe {path}: {error}; a recipe is text in UTF-8") from error


def parse(text: str, source: str = "recipe.toml") -> Recipe:
    """The recipe that such a text says. Raises ``InvalidInput``."""
    try:
        found = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"recipe {source}: {error}") from error
    if not found.base:
        raise InvalidInput(f"recipe {source}: base names nothing")
    steps = tuple(_step(each, f"recipe {source}, step {number}") for number, each in enumerate(found.steps, 1))
    stage = Stage(base=found.base, steps=steps)
    return Recipe(stages=(stage,), network=found.network, limits=found.limits, source=source)


def _step(step: _Step, where: str) -> Step:
    given = [kind for kind in KINDS if getattr(step, kind) is not None]
    if len(given) != 1:
        raise InvalidInput(f"{where}: one of {', '.join(KINDS)} is needed, not {', '.join(given) or 'none'}")
    kind = given[0]
    text = f"{kind} {_written(getattr(step, kind))}"[:200]
    if step.run is not None:
        return Run(command=step.run, network=step.network, text=text)
    if step.copy is not None:
        return _copy(step, step.copy, where, text)
    if step.env is not None:
        return Env(values=tuple(_quoted(step.env).items()), text=text)
    if step.workdir is not None:
        return Workdir(path=step.workdir, text=text)
    return User(user=step.user or "", text=text)


def _written(value: str | tuple[str, ...] | dict[str, str]) -> str:
    """For the log."""
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    return value if isinstance(value, str) else " ".join(value)


def _copy(step: _Step, copy: str | tuple[str, ...], where: str, text: str) -> Copy:
    if step.mode is not None and not MODE.fullmatch(step.mode):
        raise InvalidInput(f"{where}: mode {step.mode!r} is not of three or four octal digits")
    mode = None if step.mode is None else int(step.mode, 8)
    sources = (copy,) if isinstance(copy, str) else copy
    if not sources:
        raise InvalidInput(f"{where}: nothing is copied")
    return Copy(sources=sources, to=step.to, origin=step.origin, owner=step.owner, mode=mode, text=text)


def _quoted(env: Mapping[str, str]) -> dict[str, str]:
    """Values as they are: what would be a variable or a quote is none."""
    return {name: "".join(f"\\{char}" if char in "\\'\"$" else char for char in value) for name, value in env.items()}
