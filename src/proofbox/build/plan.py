"""What the steps of a stage come to: variables replaced, settings worked out, and what is left to do. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from proofbox.build import words
from proofbox.build.recipe import SHELL, Arg, Copy, Env, Mount, Note, Recipe, Run, Shell, Stage, Step, User, Workdir
from proofbox.errors import InvalidInput
from proofbox.model.spec import Network
from proofbox.templates.image import architecture, is_for_us

PROXIES: Final = frozenset(
    name for kind in ("http", "https", "ftp", "no", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())
)
"""Arguments that every build takes, for its commands alone, as engines do: they lead to the same files another way."""

_SETTINGS: Final = (
    "entrypoint",
    "cmd",
    "shell",
    "labels",
    "exposed_ports",
    "healthcheck",
    "stop_signal",
    "maintainer",
    "volumes",
)
"""The facts of a base that what is built on it inherits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that changes files. ``line`` and ``text`` as in ``Step``."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand(Action):
    """A command to be run. ``proxies``: variables too, which change nothing of what comes of it."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    proxies: tuple[tuple[str, str], ...] = ()
    cwd: str
    user: str
    network: Network
    mounts: tuple[Mount, ...] = ()
    """Their targets are absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFiles(Action):
    """Files to be copied; see ``Copy``. ``to`` is absolute, and ends with ``/`` where it must be a directory.

    ``whole``: of a directory not its content alone.
    """

    sources: tuple[str, ...]
    inline: tuple[tuple[str, str], ...]
    to: str
    origin: str | None
    owner: str | None
    mode: int | None
    unpack: bool
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectory(Action):
    """A directory that has to be there."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a stage starts with: of its base."""

    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = "root"
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A stage that is understood: what to do in this order, and what the result's commands get."""

    actions: tuple[Action, ...]
    env: dict[str, str]
    cwd: str
    user: str
    facts: dict[str, str]

    def networks(self) -> list[str]:
        """Those through which something may have come that is another thing tomorrow."""
        return sorted({a.network for a in self.actions if isinstance(a, RunCommand) and a.network != "none"})


def with_bases(recipe: Recipe, given: Mapping[str, str]) -> Recipe:
    """The same with the variables in the names of bases replaced: one of them may name an earlier stage.

    Raises ``InvalidInput`` with the line, also for a stage that is for another machine.
    """
    values = _globals(recipe, given)
    return replace(recipe, stages=tuple(_with_base(recipe, stage, values) for stage in recipe.stages))


def _with_base(recipe: Recipe, stage: Stage, values: Mapping[str, str]) -> Stage:
    where = f"{recipe.source}, line {stage.line}"
    try:
        name, platform = words.expand(stage.base, values), words.expand(stage.platform, values)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    if not name:
        raise InvalidInput(f"{where}: FROM {stage.base} names nothing; give it with an ARG")
    if platform and not is_for_us(platform):
        own, _ = architecture()
        raise InvalidInput(f"{where}: --platform={platform}, but this host is linux/{own}, and there is no emulation")
    return replace(stage, base=name, platform=platform)


def plan(recipe: Recipe, stage: Stage, start: Start, given: Mapping[str, str]) -> Plan:
    """What a stage comes to over a base. ``given``: the build's arguments. Raises ``InvalidInput`` with the line."""
    state = _State(recipe, start, given)
    for step in stage.steps:
        try:
            state.take(step)
        except InvalidInput as error:
            raise InvalidInput(f"{recipe.source}, line {step.line}: {error}") from error
    return state.result()


def _globals(recipe: Recipe, given: Mapping[str, str]) -> dict[str, str]:
    machine, variant = architecture()
    variant = "" if machine == "arm64" else variant  # its usual one, which engines leave out
    parts = {"OS": "linux", "ARCH": machine, "VARIANT": variant}
    parts["PLATFORM"] = "/".join(filter(None, parts.values()))
    found = {f"{whose}{part}": value for whose in ("TARGET", "BUILD") for part, value in parts.items()}
    for arg in recipe.args:
        value = given.get(arg.name)
        if value is None and arg.default is not None:
            value = words.expand(arg.default, found)
        if value is not None:
            found[arg.name] = value
    return found


class _State:
    """Settings at a point of a stage."""

    def __init__(self, recipe: Recipe, start: Start, given: Mapping[str, str]) -> None:
        self._network = recipe.network
        self._given = given
        self._globals = _globals(recipe, given)
        self._env = dict(start.env)
        self._args: dict[str, str] = {}
        self._cwd, self._user = start.cwd, start.user
        self._facts = {key: start.facts[key] for key in _SETTINGS if key in start.facts}
        self._own: set[str] = set()
        self._shell = tuple(msgspec.json.decode(start.facts["shell"])) if "shell" in start.facts else SHELL
        self._actions: list[Action] = []

    def result(self) -> Plan:
        """What has come of it."""
        return Plan(
            actions=tuple(self._actions), env=self._env, cwd=self._cwd, user=self._user, facts=dict(self._facts)
        )

    def take(self, step: Step) -> None:
        """One step more."""
        match step:
            case Run():
                self._actions.append(self._run(step))
            case Copy():
                self._actions.append(self._copy(step))
            case Env():
                values = {self._said(name): self._said(value) for name, value in step.values}
                self._env |= values  # of one instruction none sees another
            case Arg():
                self._take_arg(step)
            case Workdir():
                self._cwd = posixpath.normpath(posixpath.join(self._cwd, self._said(step.path)))
                self._actions.append(MakeDirectory(path=self._cwd, line=step.line, text=step.text))
            case User():
                self._user = self._said(step.user)
            case Shell():
                self._shell = step.argv
                self._facts["shell"] = _json(list(step.argv))
            case Note():
                self._note(step)
            case _:
                raise InvalidInput(f"a step of the kind {type(step).__name__} is not known")

    def _said(self, text: str) -> str:
        return words.expand(text, {**self._args, **self._env})

    def _run(self, step: Run) -> RunCommand:
        argv = step.command if isinstance(step.command, tuple) else (*self._shell, step.command)
        known = {**self._args, **self._env}
        return RunCommand(
            argv=argv,
            env=tuple(sorted(known.items())),
            proxies=tuple((name, self._given[name]) for name in sorted(PROXIES & self._given.keys() - known.keys())),
            cwd=self._cwd,
            user=self._user,
            network=self._network if step.network is None else step.network,
            mounts=tuple(map(self._mount, step.mounts)),
            line=step.line,
            text=step.text,
        )

    def _mount(self, mount: Mount) -> Mount:
        target = posixpath.normpath(posixpath.join(self._cwd, self._said(mount.target)))
        return replace(mount, target=target, source=None if mount.source is None else self._said(mount.source))

    def _copy(self, step: Copy) -> CopyFiles:
        known = {**self._args, **self._env}
        to = self._said(step.to)
        whole = posixpath.join(self._cwd, to)
        directory = to.endswith("/") or posixpath.basename(to) in (".", "..")
        return CopyFiles(
            sources=tuple(map(self._said, step.sources)),
            inline=tuple(
                (name, words.expand_content(text, known) if expands else text) for name, text, expands in step.inline
            ),
            to="/" + posixpath.normpath(whole).strip("/") + ("/" if directory and whole.strip("/.") else ""),
            origin=step.origin,
            owner=None if step.owner is None else self._said(step.owner),
            mode=step.mode,
            unpack=step.unpack,
            line=step.line,
            text=step.text,
        )

    def _take_arg(self, step: Arg) -> None:
        value = self._given.get(step.name)
        if value is None and step.default is not None:
            value = self._said(step.default)
        if value is None:
            value = self._globals.get(step.name)
        if value is not None:
            self._args[step.name] = value

    def _note(self, step: Note) -> None:
        value: Any = step.value
        if isinstance(value, dict):
            value = {self._said(key): self._said(each) for key, each in value.items()}
        elif step.merge and isinstance(value, list):
            value = [self._said(each) for each in value]
        if step.merge and step.key in self._facts:
            before = msgspec.json.decode(self._facts[step.key])
            value = before | value if isinstance(value, dict) else sorted({*before, *value})
        if step.key == "entrypoint" and "cmd" not in self._own:
            self._facts.pop("cmd", None)  # the base's belongs to the base's entry point
        self._own.add(step.key)
        self._facts[step.key] = _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
