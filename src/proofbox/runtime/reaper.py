"""Removes what dead owners left behind. Runs beside the work, never on its path."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

import anyio
import anyio.to_thread

from proofbox.errors import ProofboxError, Refused
from proofbox.host.owner import Owner, dead_owners
from proofbox.runtime import registry
from proofbox.runtime.contract import Runtime

log = logging.getLogger("proofbox.reaper")

SECONDS: Final = 30.0
"""How long one reaper works; the rest is for the next one."""

_started: Final[dict[int, threading.Thread]] = {}


async def reap() -> int:
    """Sweeps every dead owner at every runtime and forgets it; how many things were removed.

    Safe to repeat and in parallel, in any number of processes: an owner that one reaper works on is not seen by
    another. Cancelled half-way it leaves the rest for the next one. Raises ``StoreFailed`` if the state directory is
    not ours.
    """
    dead = await anyio.to_thread.run_sync(dead_owners)
    return await _sweep_all(dead) if dead else 0


def reap_in_background() -> threading.Thread:
    """Starts ``reap`` in a thread at the first call in this process; the same thread at all later ones.

    A thread that the interpreter waits for at its exit: a process that lives for a moment only sweeps all the same.
    """
    thread = _started.get(os.getpid())
    if thread is None:
        thread = _started[os.getpid()] = threading.Thread(target=_run, name="proofbox reaper")
        thread.start()
    return thread


def _run() -> None:
    try:
        # Without dead owners, which is nearly always, not even an event loop is made.
        dead = dead_owners()
        removed = anyio.run(_sweep_all, dead) if dead else 0
    except (ProofboxError, OSError) as error:
        log.warning("what dead processes left could not be removed: %s", error)
    else:
        if removed:
            log.info("removed %d things that dead processes left", removed)


async def _sweep_all(dead: list[Owner]) -> int:
    removed = 0
    # Instances of its own: those of the process belong to another event loop.
    runtimes: dict[str, Runtime] = {}
    for name in registry.names():
        try:
            runtimes[name] = registry.another(name)
        except Refused as refused:  # what it left stays until its package is there again
            log.debug("not swept by runtime %s: %s", name, refused)
    try:
        with anyio.move_on_after(SECONDS):
            for owner in dead:
                removed += await _sweep(owner, runtimes)
    finally:
        for owner in dead:
            owner.release()
        with anyio.CancelScope(shield=True):
            for runtime in runtimes.values():
                await runtime.close()
    return removed


async def _sweep(owner: Owner, runtimes: dict[str, Runtime]) -> int:
    removed = 0
    clean = True
    for name, runtime in runtimes.items():
        try:
            removed += await runtime.sweep(owner)
        except (ProofboxError, OSError) as error:
            clean = False
            log.warning("runtime %s could not sweep owner %s: %s", name, owner.id, error)
    if clean and not owner.forget():
        log.warning("%s is not empty after the sweep; it is tried again at the next start", owner.dir)
    return removed
