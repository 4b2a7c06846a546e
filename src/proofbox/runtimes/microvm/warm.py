"""The machines that sandboxes go on from: one a size, booted once, until init waits to be told whose it is."""

from __future__ import annotations

import platform
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from proofbox.errors import CreateFailed
from proofbox.host.idmap import HIGHEST
from proofbox.runtimes.microvm import states, vmm
from proofbox.runtimes.microvm.accel import processor
from proofbox.runtimes.microvm.image import machines
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.parts import Parts, confined
from proofbox.runtimes.microvm.ports import last_words, open_ports

BOOT_S: Final = 25.0
"""A boot takes seconds where it is emulated, on a busy host ten. Once in some hundred it stands still there."""
TRIES: Final = 2


class _Late(CreateFailed):
    """It did not come to wait in time."""


@dataclass(slots=True)
class Warm:
    """Those of one process."""

    _states: states.States = field(default_factory=lambda: states.States(machines() / "states"))

    async def state(self, machine: Machine, parts: Parts) -> vmm.State | None:
        """Where that machine goes on from; None if it has to boot, as QEMU cannot save it.

        The first time it takes a boot, and later calls for the same wait for that. Raises ``CreateFailed``; then, and
        when cancelled, no process is left.
        """
        text = await anyio.to_thread.run_sync(partial(states.about, parts.qemu, machine, _host(machine)))
        with ExitStack() as ends:
            for left in reversed(range(TRIES)):
                try:
                    return await self._states.get(text, machine, lambda memory: _boot(machine, parts, memory, ends))
                except _Late:
                    if not left:
                        raise
            return None

    def close(self) -> None:
        """Once no machine is started any more. Idempotent."""
        self._states.close()


def _host(machine: Machine) -> str:
    """What a state depends on where the processor is not emulated."""
    return f"{processor()} {platform.release()}" if machine.accelerator == "kvm" else ""


async def _boot(machine: Machine, parts: Parts, memory: int, ends: ExitStack) -> vmm.Vmm:
    """It belongs to no sandbox, and is charged to none: nothing but our kernel and init runs in it."""
    channel, control, far = open_ports("a machine that is to be saved")
    ends.enter_context(channel)
    ends.enter_context(control.port)
    try:
        booted = vmm.start(parts.qemu, machine, confined((), HIGHEST), far, memory=memory)
    finally:
        for each in far:
            each.close()
    try:
        with anyio.fail_after(BOOT_S):
            while not control.waiting:
                if not await control.take():
                    status = await booted.exited()
                    said = last_words(channel) or f"with status {status}, and nobody said why"
                    why = said if control.failed is None else control.failed.text
                    raise CreateFailed(f"a machine that was to be saved ended while it booted: {why}", "machine")
    except TimeoutError:
        await _end(booted)
        raise _Late(f"a machine that was to be saved did not boot within {BOOT_S:g} s", "machine") from None
    except BaseException:
        await _end(booted)
        raise
    return booted


async def _end(machine: vmm.Vmm) -> None:
    with anyio.CancelScope(shield=True):
        await machine.stop()
    machine.close()
