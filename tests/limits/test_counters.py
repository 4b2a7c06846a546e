"""A limit is named where the kernel's counters prove it, and only there: a signal or an error alone proves nothing."""

from __future__ import annotations

import signal

import anyio
import pytest

from proofbox.model.limits import LimitKind, Limits
from proofbox.model.outcome import Exited, HitLimit, Signaled
from proofbox.sandbox import clocks, cpu_time
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio

SPIN = "exec python3 -c 'while True: pass'"
OWN_LIMIT_ON_PROCESSES = """
import os, resource
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    for _ in range(9):
        if os.fork() == 0:
            os._exit(0)
except BlockingIOError:
    os._exit(7)
"""
FOR_EVER = 3600.0


async def test_the_kernels_own_signal_is_the_limit_where_we_come_too_late(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should this process hang, SIGXCPU ends each program; with the counter beside it, it is the limit."""
    if "command_cpu_time" not in host.probe.enforces:
        pytest.skip("nobody counts CPU time here")
    for module in (clocks, cpu_time):
        monkeypatch.setattr(module, "LEAST", FOR_EVER)  # nobody looks again after the start
    found: dict[str, HitLimit] = {}

    async def spin(kind: LimitKind) -> None:
        async with host.open_sandbox(limits=Limits(**{kind: 0.3})) as box:  # type: ignore[arg-type]
            outcome = (await box.run(SPIN, timeout=120)).outcome
        assert isinstance(outcome, HitLimit), outcome
        found[kind] = outcome

    async with anyio.create_task_group() as group:
        group.start_soon(spin, "cpu_time")
        group.start_soon(spin, "command_cpu_time")
    for kind, hit in found.items():
        assert (hit.kind, hit.limit, hit.cause) == (kind, 0.3, "task")
        assert hit.used is not None
        assert hit.used >= 0.3
        assert hit.command is not None


async def test_a_limit_on_files_that_a_program_sets_itself_is_none_of_ours(host: Host) -> None:
    """We have none on the size of one file: the SIGXFSZ that it brings about is its own end."""
    async with host.open_sandbox() as box:
        result = await box.run("ulimit -f 1; exec head -c 1M /dev/zero > big")
    assert result.outcome in (Signaled(signal.SIGXFSZ), Exited(128 + signal.SIGXFSZ))


async def test_a_fork_that_a_program_forbids_itself_is_none_of_ours(host: Host) -> None:
    """It fails with EAGAIN as at the sandbox's limit; the kernel's counter tells the two apart."""
    async with host.open_sandbox() as box:
        result = await box.run(["python3", "-c", OWN_LIMIT_ON_PROCESSES], user="1" if host.probe.users else None)
    if result.outcome == Exited(0):
        pytest.skip("this user may go beyond its own limit")
    assert result.outcome == Exited(7), result.stderr
    assert not result.usage.process_denials
