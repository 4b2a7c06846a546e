"""Dockerfiles into recipes: the instructions that images of tasks use; any other is an error with its line.

The text is taken apart by BuildKit's own parser (the package ``dockerfile``), what it means is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from proofbox.build.mounts import parse as mounts_parse
from proofbox.build.recipe import MODE, Arg, Copy, Env, Mount, Note, Recipe, Run, Shell, Stage, Step, User, Workdir
from proofbox.errors import InvalidInput, Refused
from proofbox.model.limits import Limits
from proofbox.model.spec import Network

_ESCAPE: Final = re.compile(r"\s*#\s*escape\s*=\s*(\S+)\s*", re.IGNORECASE)


class Heredoc(Protocol):
    """A document in the text."""

    name: str
    content: str


class Command(Protocol):
    """One instruction, as the parser gives it."""

    cmd: str
    json: bool
    original: str
    start_line: int
    flags: tuple[str, ...]
    value: tuple[str, ...]
    heredocs: tuple[Heredoc, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an instruction stands, for messages."""

    source: str
    line: int

    def wrong(self, what: str) -> InvalidInput:
        return InvalidInput(f"{self.source}, line {self.line}: {what}")


def parse(
    text: str,
    source: str = "Dockerfile",
    *,
    target: str | None = None,
    network: Network = "none",
    limits: Limits | None = None,
) -> Recipe:
    """The recipe that a Dockerfile says. ``source`` is its name in messages; ``target`` a stage that is the result.

    Raises ``InvalidInput`` with the line of what is not understood, ``Refused`` where the parser is not installed.
    """
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            break
        found = _ESCAPE.fullmatch(line)
        if found and found[1] != "\\":
            raise InvalidInput(f"{source}: the escape character {found[1]!r} is not supported, only the backslash")
    stages: list[Stage] = []
    steps: list[Step] = []
    args: list[Arg] = []
    for command in _commands(text, source):
        place = _Place(source, command.start_line)
        if command.cmd.upper() == "FROM":
            if stages:
                stages[-1] = replace(stages[-1], steps=tuple(steps))
            stages.append(_stage(command, place))
            steps = []
        elif stages:
            steps += _steps(command, place)
        elif command.cmd.upper() == "ARG":
            args += _args(command, place)
        else:
            raise place.wrong(f"{command.cmd.upper()} before the first FROM")
    if not stages:
        raise InvalidInput(f"{source}: no FROM in it")
    stages[-1] = replace(stages[-1], steps=tuple(steps))
    _check_origins(stages, source)
    if target is not None and target.lower() not in {stage.name for stage in stages}:
        raise InvalidInput(f"{source}: no stage is called {target!r}")
    return Recipe(
        stages=tuple(stages), target=target, args=tuple(args), network=network, limits=limits or Limits(), source=source
    )


def _check_origins(stages: Sequence[Stage], source: str) -> None:
    for number, stage in enumerate(stages):
        for step in stage.steps:
            for origin in step.origins():
                if origin.isdigit() and int(origin) >= number:
                    raise _Place(source, step.line).wrong(
                        f"from={origin}: only a stage that is above can be taken from"
                    )


def _commands(text: str, source: str) -> Sequence[Command]:
    try:
        import dockerfile
    except ImportError as error:
        raise Refused(
            f"build from {source}", ("the package that parses Dockerfiles is missing: pip install dockerfile",)
        ) from error
    try:
        found: Sequence[Command] = dockerfile.parse_string(text)
    except (dockerfile.GoParseError, dockerfile.GoIOError, ValueError) as error:
        raise InvalidInput(f"{source}: {error}") from error
    return found


def _stage(command: Command, place: _Place) -> Stage:
    words = command.value
    platform = ""
    for flag in command.flags:
        key, _, platform = flag.partition("=")
        if key != "--platform":
            raise place.wrong(f"FROM {flag} is not supported")
    named = len(words) == 3 and words[1].upper() == "AS"
    if not words or not (len(words) == 1 or named):
        raise place.wrong("FROM takes one image, and AS a name")
    return Stage(base=words[0], name=words[2].lower() if named else "", line=place.line, platform=platform)


def _steps(command: Command, place: _Place) -> Sequence[Step]:
    name = command.cmd.upper()
    make = _MAKERS.get(name)
    if make is None:
        known = ", ".join(sorted([*_MAKERS, "FROM"]))
        raise place.wrong(f"{name} is not supported; what is: {known}")
    return make(command, place)


def _said(command: Command, place: _Place) -> dict[str, Any]:
    return {"line": place.line, "text": " ".join(command.original.split("\n")[0].split())[:200]}


def _run(command: Command, place: _Place) -> Sequence[Step]:
    network: Network | None = None
    mounts: list[Mount | None] = []
    for flag in command.flags:
        if flag == "--network=none":
            network = "none"
        elif flag.startswith("--mount="):
            try:
                mounts.append(mounts_parse(flag.removeprefix("--mount=")))
            except InvalidInput as error:
                raise place.wrong(f"RUN {error}") from error
        elif flag not in ("--network=default", "--security=sandbox"):
            raise place.wrong(f"RUN {flag} is not supported")
    if not any(command.value):
        raise place.wrong("RUN takes a command")
    options: dict[str, Any] = {"network": network, "mounts": tuple(filter(None, mounts)), **_said(command, place)}
    if command.json:
        return [Run(command=command.value, **options)]
    if not command.heredocs:
        return [Run(command=command.value[0], **options)]
    text = command.original.split(None, 1)[1]
    for flag in command.flags:
        text = text.removeprefix(flag).lstrip()
    first = text.split("\n", 1)[0].strip()
    documents = command.heredocs
    if len(documents) == 1 and re.fullmatch(r"<<-?[\"']?[\w.]+[\"']?", first):
        # The document is the whole command: a script of its own where it names its interpreter.
        text = _chomped(first, documents[0].content)
        if text.startswith("#!"):
            text = _SCRIPT.format(end=_END, text=text.rstrip("\n"))
    return [Run(command=text, **options)]


_END: Final = "proofbox-end-of-script"
_SCRIPT: Final = """f=$(mktemp) && cat >"$f" <<'{end}'
{text}
{end}
chmod 700 "$f" && "$f"; s=$?; rm -f "$f"; exit $s"""


def _chomped(word: str, content: str) -> str:
    return re.sub(r"^\t+", "", content, flags=re.MULTILINE) if word.startswith("<<-") else content


def _copy_options(command: Command, place: _Place) -> dict[str, Any]:
    name = command.cmd.upper()
    options: dict[str, Any] = {"unpack": name == "ADD"}
    for flag in command.flags:
        key, _, value = flag.removeprefix("--").partition("=")
        if key == "from" and name == "COPY":
            if "$" in value:
                raise place.wrong(f"COPY {flag}: no variables there; name what they stand for with FROM ... AS")
            options["origin"] = value
        elif key == "chown":
            options["owner"] = value
        elif key == "chmod" and MODE.fullmatch(value):
            options["mode"] = int(value, 8)
        elif key != "link":
            raise place.wrong(f"{name} {flag} is not supported")
    return options


def _copy(command: Command, place: _Place) -> Sequence[Step]:
    name = command.cmd.upper()
    *sources, to = command.value
    documents = {document.name: document for document in command.heredocs}
    inline, plain = [], []
    for source in sources:
        word = re.fullmatch(r"<<-?(['\"]?)([\w.-]+)\1", source)
        if word is None or word[2] not in documents:
            plain.append(source)
            continue
        content = _chomped(source, documents[word[2]].content)
        inline.append((word[2], content, not word[1]))
    if name == "ADD":
        for source in plain:
            if re.match(r"[a-z+]+://|git@", source):
                raise place.wrong(f"ADD of {source!r} is not supported: files of the context only; fetch it with RUN")
    if not sources:
        raise place.wrong(f"{name} takes at least one source and a target")
    return [
        Copy(
            sources=tuple(plain), to=to, inline=tuple(inline), **_copy_options(command, place), **_said(command, place)
        )
    ]


def _pairs(command: Command, place: _Place) -> tuple[tuple[str, str], ...]:
    words = command.value
    if not words or len(words) % 2:
        raise place.wrong(f"{command.cmd.upper()} takes NAME=VALUE")
    return tuple(zip(words[::2], words[1::2], strict=True))


def _env(command: Command, place: _Place) -> Sequence[Step]:
    return [Env(values=_pairs(command, place), **_said(command, place))]


def _args(command: Command, place: _Place) -> list[Arg]:
    found = []
    for word in command.value:
        name, equals, value = word.partition("=")
        found.append(Arg(name=name, default=value if equals else None, **_said(command, place)))
    return found


def _workdir(command: Command, place: _Place) -> Sequence[Step]:
    return [Workdir(path=" ".join(command.value), **_said(command, place))]


def _user(command: Command, place: _Place) -> Sequence[Step]:
    return [User(user=" ".join(command.value), **_said(command, place))]


def _shell(command: Command, place: _Place) -> Sequence[Step]:
    if not command.json or not command.value:
        raise place.wrong('SHELL takes a list, as ["/bin/bash", "-c"]')
    return [Shell(argv=command.value, **_said(command, place))]


def _started(key: str) -> Callable[[Command, _Place], Sequence[Step]]:
    """ENTRYPOINT and CMD: the shell form is what a shell would be given."""

    def make(command: Command, place: _Place) -> Sequence[Step]:
        value: object = list(command.value) if command.json else ["/bin/sh", "-c", *command.value]
        return [Note(key=key, value=value, **_said(command, place))]

    return make


def _labels(command: Command, place: _Place) -> Sequence[Step]:
    return [Note(key="labels", value=dict(_pairs(command, place)), merge=True, **_said(command, place))]


def _noted(key: str, *, merge: bool = False) -> Callable[[Command, _Place], Sequence[Step]]:
    def make(command: Command, place: _Place) -> Sequence[Step]:
        value: object = list(command.value) if merge else " ".join((*command.flags, *command.value))
        return [Note(key=key, value=value, merge=merge, **_said(command, place))]

    return make


_MAKERS: Final[dict[str, Callable[[Command, _Place], Sequence[Step]]]] = {
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "ENV": _env,
    "ARG": _args,
    "WORKDIR": _workdir,
    "USER": _user,
    "SHELL": _shell,
    "ENTRYPOINT": _started("entrypoint"),
    "CMD": _started("cmd"),
    "LABEL": _labels,
    "EXPOSE": _noted("exposed_ports", merge=True),
    "HEALTHCHECK": _noted("healthcheck"),
    "STOPSIGNAL": _noted("stop_signal"),
    "MAINTAINER": _noted("maintainer"),
    "VOLUME": _noted("volumes", merge=True),
}
