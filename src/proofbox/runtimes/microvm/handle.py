"""One sandbox of this runtime, and its machine."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from proofbox.errors import CreateFailed
from proofbox.host import cgroup, cgroup_apply
from proofbox.host.home import data_home, private_directory, workshop
from proofbox.model.outcome import Usage
from proofbox.runtime.contract import Handle
from proofbox.runtimes.microvm.control import Control
from proofbox.runtimes.microvm.image import make_image
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.ports import last_words
from proofbox.runtimes.microvm.vmm import Vmm


@dataclass(slots=True, eq=False)
class MicrovmHandle:
    """One sandbox and its machine. ``base``: the user of this host that the machine runs as, 0 where none can
    be chosen."""

    id: str
    directory: Path
    plan: cgroup.Plan
    base: int
    channel: socket.socket
    control: Control
    far: tuple[socket.socket, ...]
    machine: Vmm | None = None
    shape: Machine | None = None
    """What it was started as."""
    connected: bool = False
    started: bool = False
    asked: bool = False
    booted: Usage = field(default_factory=Usage)
    """What the machine had used when its sandbox was ready: its boot is not the sandbox's doing."""

    own: ExitStack = field(default_factory=ExitStack)
    """Where images of its own are, beside the store's: they may be large, and an owner's directory lies in memory."""

    def own_image(self, sources: Sequence[str]) -> Path:
        """An image that no other sandbox uses. Blocks; raises as ``make_image``."""
        place = self.own.enter_context(workshop(private_directory(data_home()) / "making"))
        make_image(place / "own.erofs", sources)
        return place / "own.erofs"

    async def until(self, done: Callable[[], bool]) -> None:
        """Takes in what init says until that is so. Raises ``CreateFailed`` with what went wrong if it never is."""
        while not done():
            more = await self.control.take()
            failed = self.control.failed
            if failed is not None or not more:
                what = failed.text if failed is not None else await self.last_words()
                raise CreateFailed(f"sandbox {self.id}: {self._of_image(what)}", what.partition(":")[0])

    def _of_image(self, what: str) -> str:
        """With the file that a disk of the machine is, and what to do about it."""
        if not what.startswith("mount /dev/vda") or self.shape is None:
            return what
        return f"{what}: {self.shape.images[0]} may be damaged: remove it, and the next sandbox makes it anew"

    async def last_words(self) -> str:
        """Why its machine ended before the sandbox stood: what came on the channel, or that nobody said why."""
        assert self.machine is not None
        status = await self.machine.exited()
        return last_words(self.channel) or f"machine: it ended at once, with status {status}, and nobody said why"

    def close_far(self) -> None:
        """Lets go of the ends that only the machine needs. Idempotent."""
        for each in self.far:
            each.close()

    def close(self) -> None:
        """Lets all of its descriptors go. Idempotent."""
        self.close_far()
        self.channel.close()
        self.control.port.close()
        if self.machine is not None:
            self.machine.close()

    def settle(self) -> None:
        """Its sandbox stands: what the machine used so far does not count, and from here on it has the speed it may."""
        self.booted = cgroup_apply.usage(self.plan) if self.plan.directories else Usage()
        for path, value in self.plan.values:
            if is_speed(path):
                Path(path).write_text(value)


def is_speed(path: str) -> bool:
    """A limit on how fast it may be, which its boot is spared."""
    return path.rpartition("/")[2] in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")


def handle_of(handle: Handle) -> MicrovmHandle:
    """A runtime gets its own handles."""
    assert isinstance(handle, MicrovmHandle)  # tells the type checker
    return handle
