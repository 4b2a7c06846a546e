"""What isolates: nine methods. Exec is not one of them: a runtime gives a byte stream to the guest.

A runtime MUST
  - enforce everything that its ``Probe`` says it enforces, and be refused for the rest;
  - leave nothing behind when ``create`` fails or is cancelled;
  - end every process of a sandbox when the process that made it dies in any way, at once;
  - name everything that can outlive that process (cgroups, directories) by ``owner.id``, so that ``sweep`` finds it;
  - take nothing that the guest says as a fact about the host.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from proofbox.host.layers import Written
from proofbox.host.owner import Owner
from proofbox.host.room import Takes
from proofbox.model.limits import LimitKind
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, Network, SandboxSpec
from proofbox.model.template import Template


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that this host lacks, and the exact command or setting that brings it (empty if nothing does)."""

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})" if self.remedy else self.what

    @classmethod
    def of(cls, text: str) -> Missing:
        """From what ``str`` makes of one, as ``Refused`` carries it."""
        what, mark, remedy = text.partition(" (")
        return cls(what, remedy.removesuffix(")")) if mark and text.endswith(")") else cls(text)


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a runtime can run here and what it truly enforces. ``usable`` is false if anything in ``missing`` is
    fatal.
    """

    usable: bool
    level: Level
    enforces: frozenset[LimitKind]
    networks: frozenset[Network]
    users: bool
    """Several users exist inside (a full id range). Without it every command runs as the sandbox's root."""
    own_identity: bool = False
    """Each sandbox has the machine id and the boot id of its spec."""
    by_name_only: bool = False
    """Never chosen for a level, only where somebody asks for it by its name: its notes say why."""
    fatal: frozenset[LimitKind] = frozenset()
    """Limits that may end the whole sandbox, where at other runtimes they end or refuse one process in it."""
    differs: dict[str, str] = field(default_factory=dict)
    """What is not as on Linux for programs inside, by subject: ``first process``, ``status``, ..."""
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    """What is weaker or absent here without being fatal, each with its reason: limits that are not enforced, ids,
    ...
    """
    facts: dict[str, str] = field(default_factory=dict)
    """For the record: versions, cgroup version, where the cgroups are, kernel."""
    takes: Takes = field(default_factory=Takes)
    """What one sandbox takes of this host, as it was measured."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sandbox ended, seen from outside. ``oom`` is the kernel's counter, not a guess. Status as of wait(2), if
    known.
    """

    status: int | None
    oom: bool
    asked: bool
    crowded: bool = False
    """It had a kernel of its own, which could not go on without a process that this host refused it."""


@runtime_checkable
class Handle(Protocol):
    """One sandbox at a runtime. What else it holds is the runtime's own."""

    @property
    def id(self) -> str: ...


@runtime_checkable
class OwnDirectory(Handle, Protocol):
    """A handle of a runtime without a root of its own: where relative paths start if nobody says otherwise."""

    @property
    def cwd(self) -> str: ...


@runtime_checkable
class CanCountEvents(Protocol):
    """A runtime that can tell the counters of events without the rest of ``usage``: read around every single
    command.
    """

    def events(self, handle: Handle) -> tuple[int | None, int | None]:
        """(memory kills, refused forks) since the sandbox's start, None where nothing counts. Some microseconds, no
        wait.
        """
        ...


@runtime_checkable
class CanObserve(Protocol):
    """A runtime whose sandboxes' processes are processes of this host, so that they can be looked at from outside; or
    whose sandboxes' kernels are (``OwnKernels``), in which those run.
    """

    def observe(self, handle: Handle) -> tuple[Sequence[int], Usage]:
        """Its processes as this host numbers them, guest included, and what ``usage`` says. Empty once it is gone.

        About a tenth of a millisecond, no wait.
        """
        ...


@runtime_checkable
class OwnKernels(Protocol):
    """A runtime whose sandboxes have a kernel of their own, which is a process of this host."""

    def kernel_process(self, handle: Handle) -> int:
        """Its number: who has broken that kernel is this process. 0 if it is not found, or gone.

        What the sandbox may rename counts: ask before anything runs in it. Some tenths of a millisecond, no wait.
        """
        ...


@runtime_checkable
class CanRecall(Protocol):
    """A runtime whose probe may take seconds: what a process found is kept on disk, for the processes after it."""

    def rests_on(self) -> Sequence[str]:
        """The files and devices that the answer depends on, beside what it depends on at every runtime: programs,
        kernels, ``/dev/kvm``. Whatever happens to one of them, it is asked anew. May block for some tenths of a second.
        """
        ...

    def recall(self, probe: Probe) -> None:
        """Takes over what an earlier process found, instead of a call of ``probe``."""
        ...


@dataclass(frozen=True, slots=True)
class Below:
    """A layer between a template and a sandbox: a directory of the host, or a detached mount (which it uses up).

    In it lies one directory for each of the template's targets, by number: see ``model.template.targets``. ``base`` is
    what owners in a mount count from, as in ``Written``.
    """

    directory: str = ""
    mount: int = -1
    base: int = 0


@runtime_checkable
class CanLayer(Protocol):
    """A runtime whose sandboxes' writable layers outlive them, and can lie below others'."""

    async def create_above(self, spec: SandboxSpec, template: Template, below: Sequence[Below]) -> Handle:
        """As ``create``, with these layers over the template's, the first one on top. They are read, never written.

        The mounts in them still belong to the caller, who closes its descriptors after this.
        """
        ...

    def layer(self, handle: Handle) -> Written:
        """What it writes over its template, also after its end, until ``destroy``: ``hold`` it to have it longer.

        Raises ``SandboxLost`` if there is none, as it never came up.
        """
        ...

    def paused(self, handle: Handle) -> AbstractAsyncContextManager[None]:
        """While this is open no process of it runs; afterwards those run that did before, whatever happens between.

        Raises ``Busy`` if they do not stop in time; they run on then.
        """
        ...


class Remembered(Protocol):
    """A sandbox with its processes, as it was at an instant. What else it holds is the runtime's own."""

    @property
    def layer(self) -> Written | None:
        """What it had written over its template, at a runtime where that is no part of its memory."""
        ...

    def release(self) -> None:
        """Lets it go; sandboxes that were made like it go on. Once."""
        ...


@runtime_checkable
class CanSnapshotMemory(Protocol):
    """A runtime that can carry a sandbox's processes over: others go on from where it was."""

    async def remember(self, handle: Handle) -> Remembered:
        """What it is now, with all of its processes and its memory. It stands still for a moment, and goes on.

        Nothing may be under way on its channel, or the others would send the answers as well. Raises ``CreateFailed``,
        and leaves it as it was. Cancelled, it ends first what would leave the sandbox standing still.
        """
        ...

    async def create_like(
        self, spec: SandboxSpec, template: Template, remembered: Remembered, below: Sequence[Below]
    ) -> Handle:
        """As ``create``, but its processes go on from what was remembered. There is no first exchange on its channel:
        that was before.

        Its random numbers, its clock, its host name, machine id and boot id are its own when its guest first answers.
        Limits and volumes have to be those of the one that was remembered; ``below`` is as in ``CanLayer``: the
        ``layer`` that was remembered, over those that lay below that one. ``start`` and ``connect`` follow, as ever.
        """
        ...


class Runtime(Protocol):
    """One for a process; ``owner`` names everything it makes. Methods may be called concurrently for different
    handles.
    """

    name: str
    level: Level

    async def probe(self) -> Probe:
        """Can this host run it. Runs a real sandbox if that is the only proof, with a deadline. The registry asks once
        in a process; see ``CanRecall`` for longer than that.
        """
        ...

    async def create(self, spec: SandboxSpec, template: Template) -> Handle:
        """Makes everything; nothing of the template runs. Raises ``CreateFailed``; leaves nothing then, nor when
        cancelled.
        """
        ...

    async def start(self, handle: Handle) -> None:
        """Lets the guest run. Once. Raises ``CreateFailed``; the handle must be destroyed then."""
        ...

    async def connect(self, handle: Handle) -> socket.socket:
        """The byte stream to the guest: a non-blocking stream socket that the caller owns from now on. Once."""
        ...

    async def wait(self, handle: Handle) -> Ended:
        """Waits until the sandbox has ended and all its processes are gone. Safe to repeat, and to cancel."""
        ...

    async def usage(self, handle: Handle) -> Usage:
        """What the sandbox has used so far, read from outside. Also after its end, until ``destroy``."""
        ...

    async def stop(self, handle: Handle) -> None:
        """Ends all its processes and returns when they are gone. What it wrote is kept until ``destroy``.
        Idempotent.
        """
        ...

    async def destroy(self, handle: Handle) -> None:
        """Ends it and removes all that is left. Idempotent, works on half-made ones; the caller shields it."""
        ...

    async def adopt(self, owner: Owner) -> tuple[Handle, ...]:
        """Takes over the sandboxes of a dead owner that still live. None at runtimes whose sandboxes die with their
        owner.
        """
        ...

    async def sweep(self, owner: Owner) -> int:
        """Removes what a dead owner left behind; how many things there were. Safe to repeat and in parallel."""
        ...

    async def close(self) -> None:
        """Ends the runtime's own processes, after all of its sandboxes were destroyed. Idempotent."""
        ...
