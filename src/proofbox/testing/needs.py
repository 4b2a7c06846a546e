"""What a check needs of a runtime, and the fixtures that the checks share."""

from __future__ import annotations

import os
import pathlib
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import pytest

from proofbox.errors import Refused
from proofbox.model.limits import LimitKind, Limits
from proofbox.model.spec import LEVELS, Level
from proofbox.model.template import Template
from proofbox.runtime.contract import Probe
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

Check = TypeVar("Check", bound=Callable[..., Coroutine[Any, Any, None]])
NEEDS = "__proofbox_needs__"


@dataclass(frozen=True, slots=True)
class Needs:
    """Abilities without which a check says nothing. A runtime that claims an ability has to pass the check."""

    level: Level = "none"
    enforces: tuple[LimitKind, ...] = ()
    survives: tuple[LimitKind, ...] = ()
    """Limits that the check's sandbox has to survive: each ends or refuses one process in it."""
    as_linux: tuple[str, ...] = ()
    """Subjects of ``Probe.differs`` that the check is about."""
    users: bool = False
    program: str = ""
    """A program that the template must hold."""
    shared_kernel: bool = False
    """The check looks from the host at the sandbox's processes or namespaces."""

    def lacking(self, host: Host) -> str:
        """The sentence for the skip, or an empty string if the runtime has to pass."""
        probe = host.probe
        if LEVELS.index(probe.level) < LEVELS.index(self.level):
            return f"{host.runtime_name} offers the isolation level {probe.level!r}, the check is about {self.level!r}"
        for kind in self.enforces:
            if kind not in probe.enforces:
                return f"{host.runtime_name} does not enforce the limit {kind!r} here: {_noted(probe, kind)}"
        for kind in self.survives:
            if kind in probe.fatal:
                return f"{host.runtime_name} ends the whole sandbox at the limit {kind!r}: {_noted(probe, kind)}"
        for subject in self.as_linux:
            if subject in probe.differs:
                return f"{host.runtime_name} is not as Linux: {probe.differs[subject]}"
        if self.users and not probe.users:
            return f"{host.runtime_name} has a single user here: {_noted(probe, 'user')}"
        if self.shared_kernel and probe.level in ("user-kernel", "vm"):
            return f"{host.runtime_name} has a kernel of its own: the host cannot see into it"
        return ""


def _noted(probe: Probe, word: str) -> str:
    found = [note for note in (*probe.notes, *map(str, probe.missing)) if word in note]
    return "; ".join(found or probe.notes) or "its probe gives no reason"


def check(
    *,
    level: Level = "none",
    enforces: tuple[LimitKind, ...] = (),
    survives: tuple[LimitKind, ...] = (),
    as_linux: tuple[str, ...] = (),
    users: bool = False,
    program: str = "",
    shared_kernel: bool = False,
) -> Callable[[Check], Check]:
    """Marks a coroutine function as a check. It runs on the event loop of the ``anyio_backend`` fixture."""
    needs = Needs(level, enforces, survives, as_linux, users, program, shared_kernel)

    def mark(function: Check) -> Check:
        setattr(function, NEEDS, needs)
        marked: Check = pytest.mark.anyio(function)
        return marked

    return mark


class OpenBox(Protocol):
    """Opens a sandbox of the runtime under test; the arguments of ``Host.open_sandbox``."""

    def __call__(self, *, limits: Limits | None = None, **asked: Any) -> AbstractAsyncContextManager[Sandbox]: ...


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop that the checks run on. Define a fixture of this name to use another one."""
    return "asyncio"


@pytest.fixture(autouse=True)
async def abilities(request: pytest.FixtureRequest, conformance_host: Host, box: Sandbox) -> None:
    """Skips a check whose ability the probe does not offer, with the probe's own reason."""
    needs: Needs | None = getattr(request.function, NEEDS, None)
    if needs is None:
        return
    if reason := needs.lacking(conformance_host):
        pytest.skip(reason)
    if needs.program and not (await box.run(f"command -v {needs.program}")).ok:
        pytest.skip(f"the template {box.template.name!r} holds no program {needs.program!r}")


@pytest.fixture(scope="module")
def conformance_template() -> str | Template:
    """What the sandboxes are made from. Define a fixture of this name to use another one."""
    return "host"


@pytest.fixture(scope="module")
async def box(conformance_host: Host, conformance_template: str | Template) -> AsyncIterator[Sandbox]:
    """One sandbox for all checks of a module that leave it as it was but for their own directory."""
    async with conformance_host.open_sandbox(conformance_template) as opened:
        yield opened


@pytest.fixture
async def place(box: Sandbox) -> AsyncIterator[str]:
    """An empty directory of the check's own inside ``box``, writable for everybody, removed afterwards."""
    path = f"/tmp/proofbox-check-{uuid.uuid4().hex[:12]}"
    await box.files.mkdir(path, mode=0o777)
    await box.run(["chmod", "0777", path])
    yield path
    await box.files.remove(path, recursive=True)


@pytest.fixture
def open_box(conformance_host: Host, conformance_template: str | Template) -> OpenBox:
    """For checks that need a sandbox with limits of its own, or more than one, or that spoil it."""

    def opened(*, limits: Limits | None = None, **asked: Any) -> AbstractAsyncContextManager[Sandbox]:
        return conformance_host.open_sandbox(**{"template": conformance_template, "limits": limits, **asked})

    return opened


@pytest.fixture
def marker() -> str:
    """A number of seconds that no other process sleeps: ``sleep MARKER`` can be found in a process list."""
    return f"7{uuid.uuid4().int % 10**8:08d}"


def skip_unless_required(name: str, refused: Refused) -> NoReturn:
    """Skips with the sentence that ``proofbox doctor`` prints.

    ``PROOFBOX_REQUIRE=native,crun`` names runtimes that must be usable: there a skip would hide a failure.
    """
    if name in os.environ.get("PROOFBOX_REQUIRE", "").split(","):
        raise refused
    pytest.skip(str(refused))


async def alive(box: Sandbox, marker: str) -> list[str]:
    """Command lines inside ``box`` that hold the marker, from its ``/proc``. The search does not find itself."""
    pattern = f"[{marker[0]}]{marker[1:]}"
    found = await box.run(
        f"for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -e '{pattern}'; done; true"
    )
    return found.stdout.splitlines()


def alive_outside(marker: str) -> list[int]:
    """Processes of the whole host whose command line holds the marker."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(int(entry.name))
    return found
