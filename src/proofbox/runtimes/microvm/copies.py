"""Sandboxes that go on where another one is: its machine is copied as it runs, and the copies made others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.to_thread

from proofbox.errors import CreateFailed
from proofbox.host.idmap import HIGHEST
from proofbox.host.layers import Written
from proofbox.kit.sealed import seal
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Below, Handle, Remembered
from proofbox.runtimes.microvm import vmm
from proofbox.runtimes.microvm.handle import MicrovmHandle, handle_of
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.parts import Parts, confined
from proofbox.runtimes.microvm.ports import open_ports


@dataclass(frozen=True, slots=True)
class Copy:
    """A machine that held a sandbox, as it was at an instant."""

    state: vmm.State
    shape: Machine
    layer: Written | None = None
    """None: all that was written is in the machine's memory."""

    def release(self) -> None:
        """Machines that were started from it go on."""
        self.state.close()


class Maker(Protocol):
    """What this needs of the runtime."""

    async def parts(self) -> Parts: ...

    def _prepare(self, spec: SandboxSpec, parts: Parts) -> MicrovmHandle: ...

    async def destroy(self, handle: Handle) -> None: ...


class Copying:
    """See ``CanSnapshotMemory``."""

    __slots__ = ()

    async def remember(self: Maker, handle: Handle) -> Copy:
        """Some tenths of a second; the machine stands still in a part of it, and goes on."""
        mine, parts = handle_of(handle), await self.parts()
        if mine.machine is None or mine.shape is None:
            raise CreateFailed(f"sandbox {mine.id} has no machine that could be copied", "machine")
        async with mine.control.quiet():
            whole = await mine.machine.copied(mine.shape)
        try:
            return Copy(await _shared(parts, mine.shape, whole), mine.shape)
        finally:
            os.close(whole)

    async def create_like(
        self: Maker, spec: SandboxSpec, template: Template, remembered: Remembered, below: Sequence[Below]
    ) -> MicrovmHandle:
        """A machine that goes on from the copy, with random numbers, a clock and names of its own."""
        assert isinstance(remembered, Copy)  # tells the type checker; a runtime gets its own ones
        parts = await self.parts()
        handle = await anyio.to_thread.run_sync(self._prepare, spec, parts)
        try:
            await _go_on(handle, spec, remembered, parts)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(handle)
            raise
        return handle


async def _go_on(handle: MicrovmHandle, spec: SandboxSpec, copy: Copy, parts: Parts) -> None:
    where = confined(handle.plan.directories, handle.base)
    try:
        handle.machine = vmm.start(parts.qemu, copy.shape, where, handle.far, state=copy.state)
    finally:
        handle.close_far()
    handle.shape = copy.shape
    handle.control.waiting = True
    await handle.machine.go()
    try:
        await handle.control.renew(spec)
    except anyio.BrokenResourceError as error:
        failed = handle.control.failed
        what = failed.text if failed is not None else await handle.last_words()
        raise CreateFailed(f"sandbox {spec.id}: {what}", "machine") from error
    handle.settle()


async def _shared(parts: Parts, machine: Machine, whole: int) -> vmm.State:
    """The copy in the form of a saved state, whose memory all share: a machine takes it in, and never runs."""
    memory = vmm.memory_file(machine)
    channel, control, far = open_ports("a copy of a machine")
    try:
        with channel, control.port:
            try:
                holder = vmm.start(parts.qemu, machine, confined((), HIGHEST), far, memory=memory, copy=whole)
            finally:
                for each in far:
                    each.close()
            try:
                await holder.taken_in()
                devices = await holder.devices()
            finally:
                with anyio.CancelScope(shield=True):
                    await holder.stop()
                holder.close()
        seal(memory)
    except BaseException:
        os.close(memory)
        raise
    return vmm.State(memory, devices, halted=True)
