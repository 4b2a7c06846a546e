"""Removes what dead owners left behind. Runs beside the work, never on its path."""

from __future__ import annotations

import logging
import os

import anyio
import anyio.to_thread

from proofbox.errors import ProofboxError, Refused
from proofbox.host.owner import Owner, dead_owners
from proofbox.kit.loop import Background
from proofbox.runtime import registry

log = logging.getLogger("proofbox.reaper")

_started: set[int] = set()


async def reap() -> int:
    """Sweeps every dead owner at every runtime and forgets it; how many things were removed.

    Safe to repeat and in parallel, in any number of processes: an owner that one reaper works on is not seen by
    another. Cancelled half-way it leaves the rest for the next one. Raises ``StoreFailed`` if the state directory is
    not ours.
    """
    dead = await anyio.to_thread.run_sync(dead_owners)
    removed = 0
    try:
        for owner in dead:
            removed += await _sweep(owner)
    finally:
        for owner in dead:
            owner.release()
    return removed


def reap_in_background() -> Background | None:
    """Starts ``reap`` beside the caller at the first call in this process; None at all later ones."""
    if os.getpid() in _started:
        return None
    _started.add(os.getpid())

    async def run() -> None:
        try:
            removed = await reap()
        except (ProofboxError, OSError) as error:
            log.warning("what dead processes left could not be removed: %s", error)
        else:
            if removed:
                log.info("removed %d things that dead processes left", removed)

    return Background(run, "proofbox reaper")


async def _sweep(owner: Owner) -> int:
    removed = 0
    clean = True
    for name in registry.names():
        try:
            runtime = registry.runtime(name)
        except Refused:  # its code is not installed: what it left stays, and so does the record
            log.debug("runtime %s cannot be loaded, owner %s not swept by it", name, owner.id)
            continue
        try:
            removed += await runtime.sweep(owner)
        except (ProofboxError, OSError) as error:
            clean = False
            log.warning("runtime %s could not sweep owner %s: %s", name, owner.id, error)
    if clean and not await anyio.to_thread.run_sync(owner.forget):
        log.warning("%s is not empty after the sweep; it is tried again at the next start", owner.dir)
    return removed
