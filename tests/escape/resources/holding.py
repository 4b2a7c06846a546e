"""Memory that no process seems to have: objects, pipes and sockets that hold it after who filled them is gone."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

from proofbox.model.limits import MIB, Limits
from proofbox.model.outcome import HitLimit
from proofbox.runtimes.microvm.inside import guest_memory
from proofbox.runtimes.microvm.vmm import OVERHEAD

LIMIT = 48 * MIB
WANTED = 128
"""MiB that each attempt would like to hold."""
HOLD = f"""
import ctypes, fcntl, mmap, socket
held = []
def fill(one):
    done = 0
    while done < {WANTED}:
        done += one()
    return done
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
MIB = 1 << 20
BLOCK = bytes(MIB)
"""


async def counts(inside: Inside, attempt: str) -> None:
    """Nobody comes to hold what is more than the limit, whether the kernel refuses it or kills for it."""
    if "memory" not in inside.host.probe.enforces:
        pytest.skip("nothing on this host enforces the limit memory")
    limits = Limits(memory=LIMIT, disk=None)
    most = LIMIT
    if inside.host.runtime_name == "microvm":  # the whole machine, and QEMU
        most = guest_memory(limits) + max(OVERHEAD.values())
    async with inside.open_box(limits=limits) as box:
        result = await inside.run({"attempt": HOLD + attempt}, box)
        # What outlives who filled it leaves no room for the program that tells, either.
        assert "held" not in result.stdout, result
        assert result.ok or (isinstance(result.outcome, HitLimit) and result.outcome.kind == "memory"), result
        assert result.usage.oom_kills or "ENOMEM" in result.stdout or "ENOBUFS" in result.stdout, result
        assert ((await box.usage()).memory_peak or 0) <= most
