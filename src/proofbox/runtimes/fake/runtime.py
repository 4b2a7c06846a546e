"""The runtime contract over scripted guests. Isolates nothing, because nothing runs."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from proofbox.errors import CreateFailed, Refused
from proofbox.host.owner import Owner
from proofbox.model.limits import LIMIT_KINDS
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Ended, Handle, Probe
from proofbox.runtimes.fake.faults import Faults
from proofbox.runtimes.fake.guest import FakeGuest
from proofbox.runtimes.fake.program import Program


@dataclass(slots=True)
class FakeHandle:
    """One scripted sandbox."""

    id: str
    faults: Faults
    guest: FakeGuest
    host_end: socket.socket | None
    asked: bool = False
    refusals: int = 0
    """How often destroy may still fail."""


def _nothing_wrong(spec: SandboxSpec) -> Faults:
    return Faults()


class FakeRuntime:
    """``scripts`` gives each sandbox its faults, ``programs`` adds commands to the built-in ones; both at any time.

    ``made`` counts the sandboxes that were created, ``live`` holds those that were not destroyed yet.
    """

    name: str = "fake"
    level: Level = "none"

    def __init__(self, owner: Owner | None = None) -> None:
        self.scripts: Callable[[SandboxSpec], Faults] = _nothing_wrong
        self.programs: dict[str, Program] = {}
        self.live: dict[str, FakeHandle] = {}
        self.made = 0

    async def probe(self) -> Probe:
        """Always usable; it claims every limit, as nothing can pass one, and can be told to report them as passed."""
        return Probe(
            usable=True,
            level="none",
            enforces=frozenset(LIMIT_KINDS),
            networks=frozenset({"none"}),
            users=False,
            notes=("no program runs: the guest is a script in this process", "a single user: users do not exist"),
            facts={"runtime": "fake"},
        )

    async def create(self, spec: SandboxSpec, template: Template) -> FakeHandle:
        """A guest that does not run yet, or the fault that the script names."""
        faults = self.scripts(spec)
        if faults.refuse:
            raise Refused(f"sandbox {spec.id}", (faults.refuse,))
        if faults.create_hangs:
            await anyio.sleep_forever()
        if faults.create_fails:
            raise CreateFailed(f"sandbox {spec.id}: {faults.create_fails} failed (scripted)", faults.create_fails)
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        handle = FakeHandle(spec.id, faults, FakeGuest(far, faults, self.programs), near, refusals=faults.destroy_fails)
        self.live[spec.id] = handle
        self.made += 1
        return handle

    async def start(self, handle: Handle) -> None:
        """The guest begins to read."""
        _mine(handle).guest.start()

    async def connect(self, handle: Handle) -> socket.socket:
        """Our end of the socket pair. Once."""
        mine = _mine(handle)
        if mine.host_end is None:
            raise CreateFailed(f"sandbox {mine.id}: the channel was given away already", "connect")
        given, mine.host_end = mine.host_end, None
        return given

    async def wait(self, handle: Handle) -> Ended:
        """Until the guest has ended."""
        mine = _mine(handle)
        await mine.guest.ended.wait()
        return Ended(status=9 if mine.asked else 0, oom=mine.guest.oom_kills > 0, asked=mine.asked)

    async def usage(self, handle: Handle) -> Usage:
        """The counters of the script; None for what nobody counts here."""
        guest = _mine(handle).guest
        return Usage(oom_kills=guest.oom_kills, process_denials=guest.denials)

    async def stop(self, handle: Handle) -> None:
        """Ends the guest. Idempotent."""
        mine = _mine(handle)
        mine.asked = mine.asked or not mine.guest.ended.is_set()
        await mine.guest.stop()

    async def destroy(self, handle: Handle) -> None:
        """Ends the guest and forgets it; fails as often as the script says."""
        mine = _mine(handle)
        if mine.refusals:
            mine.refusals -= 1
            raise OSError(16, f"sandbox {mine.id}: destroy failed (scripted)")
        await self.stop(mine)
        if mine.host_end is not None:
            mine.host_end.close()
            mine.host_end = None
        self.live.pop(mine.id, None)

    async def adopt(self, owner: Owner) -> tuple[Handle, ...]:
        """None: its sandboxes die with their process."""
        return ()

    async def sweep(self, owner: Owner) -> int:
        """Nothing of it outlives its process."""
        return 0

    async def close(self) -> None:
        """Nothing of its own runs."""


def _mine(handle: Handle) -> FakeHandle:
    if not isinstance(handle, FakeHandle):
        raise TypeError(f"a handle of another runtime: {handle!r}")
    return handle
