"""Builds a recipe, stage by stage; what its steps leave is in ``steps.py``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import anyio.to_thread

from proofbox.build.events import BasePulled, Event, StepBegan, StepEnded, Tell
from proofbox.build.plan import PROXIES, Start, plan, with_bases
from proofbox.build.recipe import SCRATCH, Recipe, Stage
from proofbox.build.steps import Built, Steps
from proofbox.errors import InvalidInput, StoreFailed, UnknownTemplate
from proofbox.model.template import Template
from proofbox.sandbox.host import Host
from proofbox.templates.images import moving, pull
from proofbox.templates.names import NAME
from proofbox.templates.registry import parse as parse_reference
from proofbox.templates.store import Store, check_name, open_store
from proofbox.templates.unpack import Notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to build. ``context``: the directory that is copied from, which nobody may change meanwhile.

    ``args``: of the build; ``bases``: templates by the names that bases have in the recipe. ``fresh``: every step is
    made, whatever is kept. ``repull``: bases of registries are looked up again.
    """

    context: Path | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    repull: bool = False


def quiet(event: Event) -> None:
    """Nobody listens."""


async def build(
    recipe: Recipe,
    wanted: Wanted,
    name: str | None = None,
    *,
    tell: Tell = quiet,
    host: Callable[[], Awaitable[Host]] = Host.local,
) -> Template:
    """The template that ``recipe`` says, in this user's store, called ``name`` afterwards if that is given.

    ``host`` is asked for with the first step that runs something, and is the caller's to close.

    A step that was made before from the same files, text and settings is taken from the store; of several builds of one
    step at a time one works. Raises ``InvalidInput`` (with the line), ``BuildFailed`` (a step's command failed),
    ``Refused``, ``StoreFailed``, ``SandboxLost``; then, and when cancelled, steps that were done are kept, the name
    means what it meant, and nothing runs. Safe to repeat.
    """
    if name is not None:
        check_name(name)
    unknown = sorted(set(wanted.args) - recipe.arguments() - PROXIES)
    if unknown:
        raise InvalidInput(f"{recipe.source}: it has no ARG {', '.join(unknown)}")
    return await _Build(with_bases(recipe, wanted.args), open_store(), wanted, tell, host).result(name)


class _Build:
    """One build."""

    def __init__(
        self, recipe: Recipe, store: Store, wanted: Wanted, tell: Tell, host: Callable[[], Awaitable[Host]]
    ) -> None:
        self._recipe, self._store, self._wanted, self._tell, self._host = recipe, store, wanted, tell, host
        self._stages: dict[str, Template] = {}
        self._mutable: dict[str, None] = {}

    async def result(self, name: str | None) -> Template:
        """See ``build``."""
        last = self._recipe.last()
        for number in self._recipe.needed(last):
            stage = self._recipe.stages[number]
            template = await self._stage(stage, number, name if number == last else None)
            self._stages |= {key: template for key in (str(number), stage.name) if key}
        return self._stages[str(last)]

    async def _stage(self, stage: Stage, number: int, name: str | None) -> Template:
        given = self._wanted.args
        base = await self._found(stage.base, stage.line)
        if "onbuild" in base.facts:
            raise InvalidInput(
                f"{self._recipe.source}, line {stage.line}: the image {stage.base} wants instructions to be added "
                f"(ONBUILD), which is not supported: write them down after FROM: {base.facts['onbuild']}"
            )
        start = Start(env=base.env, cwd=base.cwd, user=base.user, facts=base.facts)
        planned = plan(self._recipe, stage, start, given)
        steps = Steps(self._recipe, self._store, self._wanted, self._tell, self._found, self._host)
        built = Built(base)
        for position, action in enumerate(planned.actions, 1):
            self._tell(
                StepBegan(
                    stage=stage.name or str(number),
                    number=position,
                    total=len(planned.actions),
                    line=action.line,
                    text=action.text,
                )
            )
            began = monotonic()
            kept, layers = await steps.make(action, built)
            built.layers = (*layers, *built.layers)
            self._tell(StepEnded(kept=kept, seconds=monotonic() - began))
        self._mutable |= dict.fromkeys(f"steps run with network {network}" for network in planned.networks())
        facts = {"source": self._recipe.source, "base": f"{base.name} {base.digest}"} | planned.facts
        if self._mutable:
            facts["mutable"] = "; ".join(self._mutable)
        return await anyio.to_thread.run_sync(
            lambda: self._store.put_template(
                built.layers,
                env=planned.env,
                cwd=planned.cwd,
                user=planned.user,
                facts=facts,
                name=name,
                over=base,
            )
        )

    async def _found(self, name: str, line: int) -> Template:
        """The stage or template of that name; pulled if it is an image that the store does not have."""
        if name.lower() in self._stages:
            return self._stages[name.lower()]
        found, mutable = await anyio.to_thread.run_sync(self._resolved, name, line)
        if mutable:
            self._mutable[mutable] = None
        return found

    def _resolved(self, name: str, line: int) -> tuple[Template, str]:
        """And why it may be another one tomorrow."""
        if name in self._wanted.bases:
            return _of_template(name, self._store.resolve(self._wanted.bases[name]))
        if name == SCRATCH:
            return self._scratch(), ""
        try:
            names = [name] if NAME.fullmatch(name) or name.startswith("sha256:") else []
            image = name_of_image(name)
        except InvalidInput as error:
            raise InvalidInput(f"{self._recipe.source}, line {line}: {error}") from error
        for each in names if self._wanted.repull else [*names, image]:
            try:
                found = self._store.resolve(each)
            except UnknownTemplate:
                continue
            # One image can be known by a tag and by its digest; what counts is how it is named here.
            return _of_template(name, found) if each in names else (found, moving(name))
        began = monotonic()
        try:
            found = pull(self._store, name, image)
        except (InvalidInput, StoreFailed) as error:
            asked = f"{self._recipe.source}, line {line}: there is no template for the base {name!r} here"
            raise type(error)(f"{asked} (`--base {name}=TEMPLATE` takes one that is), and {error}") from error
        self._tell(BasePulled(reference=name, seconds=monotonic() - began))
        return found, moving(name)

    def _scratch(self) -> Template:
        def empty(tree: Path) -> Notes:
            tree.mkdir(mode=0o755)
            return Notes()

        layer = self._store.put_layer(empty)
        return self._store.put_template([("/", layer)], env={}, facts={"source": SCRATCH})


def _of_template(name: str, found: Template) -> tuple[Template, str]:
    return found, f"{name}: {found.facts['mutable']}" if "mutable" in found.facts else ""


def name_of_image(reference: str) -> str:
    """What an image of a registry is called in the store when a build pulls it. Raises ``InvalidInput``.

    Two tags that differ in capitals, or beyond the length of a name, are two images.
    """
    repository, tag, digest = parse_reference(reference)
    whole = f"{repository}/{digest[7:19] or tag}"
    name = re.sub(r"[^a-z0-9._/-]", "-", whole.lower()).lstrip("-")
    if whole == whole.lower() and NAME.fullmatch(name):
        return name
    return f"{name[:100]}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
