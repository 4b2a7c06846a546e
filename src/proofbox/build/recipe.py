"""What is to be built: stages of steps over a base, as a recipe or a Dockerfile says it. Frozen values, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from proofbox.model.limits import MIB, Limits
from proofbox.model.spec import Network

SHELL: Final = ("/bin/sh", "-c")
MODE: Final = re.compile(r"0?[0-7]{3,4}")
"""Of files, as they are written."""
SCRATCH: Final = "scratch"
"""The base that holds nothing."""

LIMITS: Final = Limits(memory=8192 * MIB, disk=6144 * MIB, inodes=1_000_000, processes=4000, wall=3600.0)
"""Of one step, as far as this host can enforce them and nothing else is said: installing needs more than testing.

What a step writes counts as memory until the step is over. More processes gVisor does not live with.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction. ``line``: where it stands; ``text``: how it is written, for the log."""

    line: int = 0
    text: str = ""

    def origins(self) -> tuple[str, ...]:
        """The stages or templates that it takes files of."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """What one command sees at ``target``, and the result does not have: files of the context, or of another stage or
    template (``origin``), where there is a ``source``; else an empty directory. What is written there is dropped.
    ``owner`` and ``mode`` are the empty directory's.
    """

    target: str
    source: str | None = None
    origin: str | None = None
    owner: tuple[int, int] = (0, 0)
    mode: int = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Step):
    """Runs a command as the user of that point. ``command``: shell text, or arguments for no shell."""

    command: str | tuple[str, ...]
    network: Network | None = None
    mounts: tuple[Mount, ...] = ()

    def origins(self) -> tuple[str, ...]:
        """Those of its mounts."""
        return tuple(mount.origin for mount in self.mounts if mount.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Step):
    """Copies files of the context, of another stage or template (``origin``), or written here (``inline``).

    ``sources`` are patterns; of a directory its content is copied. ``unpack``: a tar archive is unpacked.
    ``owner``: name or id, ``:group``; root otherwise. ``mode`` for all that is copied, as it is there otherwise.
    """

    sources: tuple[str, ...]
    to: str
    origin: str | None = None
    owner: str | None = None
    mode: int | None = None
    inline: tuple[tuple[str, str, bool], ...] = ()
    """Name, content, and whether variables in it are replaced."""
    unpack: bool = False

    def origins(self) -> tuple[str, ...]:
        """The one that it has."""
        return (self.origin,) if self.origin else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Env(Step):
    """Sets variables for all that follows, and for the template."""

    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg(Step):
    """A variable of the build alone; ``default`` None: only if it is given."""

    name: str
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workdir(Step):
    """The directory of all that follows, made if it is missing."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Step):
    """The user of all that follows."""

    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell(Step):
    """What runs shell text from here on."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Step):
    """What is for the record only. ``merge``: it is added to what the base says under that key."""

    key: str
    value: object
    merge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps over a base: a name or digest of a template, ``scratch``, an earlier stage, or an image of a registry."""

    base: str
    steps: tuple[Step, ...] = ()
    name: str = ""
    line: int = 0
    platform: str = ""
    """What it is said to be for, as ``linux/amd64``; it has to be this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All stages, the last one is the result unless ``target`` names another. Variables in it are not replaced yet.

    ``network`` is that of the steps that run something: with ``host`` the result is what the network had that day.
    """

    stages: tuple[Stage, ...]
    target: str | None = None
    args: tuple[Arg, ...] = ()
    """Those before the first stage, for the names of bases."""
    network: Network = "none"
    limits: Limits = field(default_factory=Limits)
    """Over ``LIMITS``; each that is asked for is enforced or refused."""
    source: str = "recipe"
    """For the record and for messages."""

    def last(self) -> int:
        """The number of the stage that is the result."""
        names = [stage.name for stage in self.stages]
        return len(names) - 1 if self.target is None else names.index(self.target)

    def arguments(self) -> set[str]:
        """The names of all ``ARG``s."""
        steps = [step for stage in self.stages for step in stage.steps]
        return {arg.name for arg in (*self.args, *steps) if isinstance(arg, Arg)}

    def needed(self, last: int) -> list[int]:
        """The stages that one depends on and itself, in their order; the variables in names of bases are replaced."""
        needed, todo = set(), [last]
        while todo:
            number = todo.pop()
            needed.add(number)
            earlier = {str(n): n for n in range(number)}
            earlier |= {stage.name: n for n, stage in enumerate(self.stages[:number]) if stage.name}
            stage = self.stages[number]
            named = [stage.base, *(origin for step in stage.steps for origin in step.origins())]
            todo += [earlier[name.lower()] for name in named if name.lower() in earlier]
        return sorted(needed)


def recipe(base: str, *steps: Step, network: Network = "none", limits: Limits | None = None) -> Recipe:
    """One stage over ``base``."""
    return Recipe(stages=(Stage(base=base, steps=steps),), network=network, limits=limits or Limits())
