"""The proof that a virtual machine runs here, and what is kept of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from tests.microvm.conftest import PATIENCE, confined

from proofbox.runtimes.microvm import accel
from proofbox.runtimes.microvm.accel import Verdict
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.qemu import Qemu
from proofbox.testing.orphans import adopting, children, settled

pytestmark = pytest.mark.container


async def test_proof_is_a_kernel_that_runs(qemu: Qemu, bare: Machine) -> None:
    """Emulated, where it always can: it comes as far as to miss its first program."""
    ran, words = await accel.boot(qemu, bare.kernel, confined(), "tcg", PATIENCE)
    assert ran, words


async def test_what_does_not_run_is_ended_at_its_deadline(qemu: Qemu, bare: Machine) -> None:
    """No process is left of a proof that takes too long."""
    before = children()
    with adopting():
        with pytest.raises(TimeoutError):
            await accel.boot(qemu, bare.kernel, confined(), "tcg", 0.05)
        assert settled(before, 20.0) == {}


async def test_program_that_is_no_kernel_proves_nothing(qemu: Qemu, tmp_path: Path) -> None:
    """The words are the evidence."""
    (tmp_path / "kernel").write_bytes(b"no kernel" * 1000)
    ran, words = await accel.boot(qemu, tmp_path / "kernel", confined(), "tcg", PATIENCE)
    assert not ran
    assert "kernel" in words


async def test_verdict_is_kept_for_this_host_alone(qemu: Qemu, bare: Machine, tmp_path: Path) -> None:
    """Found once, for a kernel; it is found again for another one, and where the file makes no sense."""
    cache = tmp_path / "verdict"
    first = await accel.choose(qemu, bare.kernel, confined(), cache)
    assert first.evidence
    if not os.access(accel.DEVICE, os.R_OK | os.W_OK):
        assert first.accelerator == "tcg"
        assert not cache.exists()
        return
    kept = msgspec.json.decode(cache.read_bytes(), type=Verdict)
    assert kept == first
    planted = msgspec.structs.replace(first, evidence="kept")
    cache.write_bytes(msgspec.json.encode(planted))
    assert await accel.choose(qemu, bare.kernel, confined(), cache) == planted
    other = tmp_path / "other"
    other.write_bytes(b"no kernel" * 1000)
    assert (await accel.choose(qemu, other, confined(), cache)).accelerator == "tcg"
    cache.write_bytes(b"{")
    assert (await accel.choose(qemu, bare.kernel, confined(), cache)).accelerator == first.accelerator


def test_a_verdict_of_a_slow_host_is_believed_for_a_while_only() -> None:
    """And not where the clock was set back since it was found, which would be for as long."""
    now = time.time()
    verdicts = [Verdict("tcg", "", at=now + seconds) for seconds in (-1.0, -accel.AGAIN_S - 60.0, 86_400.0)]
    assert [accel._recent(each) for each in verdicts] == [True, False, False]
