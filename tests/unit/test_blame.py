"""The classifier: evidence in, cause out. Real programs are in ``tests/limits``."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.model.blame import HOST_SHARE, MEANING, cause_of, masked, shares_of, taken
from proofbox.model.evidence import Evidence, Pressure
from proofbox.model.outcome import Cause, HitLimit

IDLE = Pressure(cpus=2, others=0.1, io=0.0, memory=0.0)
BUSY = Pressure(cpus=2, others=19.0, io=0.0, memory=0.0)
COMPUTED = Evidence(elapsed=10.0, seen=9.8, looks=50, cpu=9.7, wanted=9.8, wanting=9.8, share=2.0, host=IDLE)


def but(**fields: Any) -> Evidence:
    """The program that computed all the time, with something else about it."""
    return msgspec.structs.replace(COMPUTED, **fields)


SLEPT = but(cpu=0.0, wanted=0.0, wanting=0.0, still=9.8)
STARVED = but(cpu=1.0, host=BUSY)
READ = but(cpu=0.1, wanted=0.1, wanting=0.1)

CASES: dict[str, tuple[Evidence | None, Cause]] = {
    "computed": (COMPUTED, "task"),
    "slept": (SLEPT, "hung"),
    "slept while the host was busy": (msgspec.structs.replace(SLEPT, host=BUSY), "hung"),
    "was not let": (STARVED, "host"),
    "lost a little": (but(cpu=8.5, host=BUSY), "task"),
    "competed with itself only": (but(cpu=1.0), "task"),
    "seemed to want more than its group ever waited": (but(cpu=1.0, host=BUSY, waits=0.3), "task"),
    "was not let, says its group": (but(cpu=1.0, host=BUSY, waits=8.9), "host"),
    "used its own quota": (but(cpu=1.96, wanted=1.96, share=0.2, throttled=7.8, host=BUSY), "task"),
    "got half its own quota": (but(cpu=0.9, wanted=1.96, share=0.2, throttled=1.0, host=BUSY), "host"),
    "was held back by a quota around us": (
        but(cpu=5.0, host=Pressure(cpus=2, others=0.1, throttled=6.0)),
        "host",
    ),
    "was robbed by the hypervisor": (but(host=Pressure(cpus=2, others=6.0, steal=5.0)), "host"),
    "computed first, then blocked": (but(cpu=3.0, wanted=3.0, wanting=3.0, still=6.8), "hung"),
    "paused, and got on": (but(cpu=4.0, wanted=4.0, wanting=4.0), "task"),
    "polled": (but(cpu=0.3, wanted=0.3, wanting=0.3), "hung"),
    "waited for a slow disk": (msgspec.structs.replace(READ, disk_wait=9.0, moved=9 << 20), "host"),
    "read as fast as the disk": (msgspec.structs.replace(READ, disk_wait=9.0, moved=2 << 30), "task"),
    "was stuck in the kernel": (msgspec.structs.replace(READ, stuck=9.0), "unknown"),
    "was stuck while the disks were": (
        msgspec.structs.replace(READ, stuck=9.0, host=Pressure(cpus=2, others=0.1, io=0.9)),
        "host",
    ),
    "waited for our own late answers": (msgspec.structs.replace(SLEPT, lag=4.0, served=True), "host"),
    "slept while we were late": (msgspec.structs.replace(SLEPT, lag=4.0), "hung"),
    "was given back what it lost": (but(cpu=4.9, allowed=5.0, host=BUSY), "task"),
    "was seen once": (but(looks=1), "unknown"),
    "was seen at the start and at the end only": (but(looks=2), "unknown"),
    "was starved between two looks": (but(looks=2, cpu=3.0, host=BUSY), "host"),
    "was seen for too short a part": (but(seen=1.0, cpu=1.0, wanted=1.0, wanting=1.0), "unknown"),
    "has no CPU time": (but(cpu=None), "unknown"),
    "on a host that tells nothing": (but(host=Pressure(cpus=2)), "unknown"),
    "without evidence": (None, "unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_evidence_has_its_cause(name: str) -> None:
    """A program that ..."""
    evidence, cause = CASES[name]
    assert cause_of(evidence) == cause, shares_of(evidence) if evidence else None


@given(
    wanted=st.floats(0.01, 20),
    got=st.floats(0, 1),
    others=st.floats(0, 40),
    still=st.floats(0, 10),
    disk=st.floats(0, 10),
)
def test_more_that_the_host_took_never_makes_it_the_programs_fault(
    wanted: float, got: float, others: float, still: float, disk: float
) -> None:
    """Who was called the host's victim stays it when the others had more, or the program less; shares stay shares."""
    wanting = min(9.8, wanted)
    evidence = but(
        cpu=wanted * got, wanted=wanted, wanting=wanting, still=min(still, 9.8 - wanting),
        disk_wait=disk, host=Pressure(cpus=2, others=others, io=1.0),
    )  # fmt: skip
    shares = shares_of(evidence)
    assert shares is not None
    assert all(0 <= share <= 1 for share in (shares.ran, shares.lost, shares.disk, shares.still, shares.taken))
    assert 0 <= taken(evidence) <= 10.0
    if cause_of(evidence) == "host":
        worse = msgspec.structs.replace(
            evidence, cpu=wanted * got / 2, host=Pressure(cpus=2, others=2 * others + 1, io=1.0)
        )
        assert cause_of(worse) == "host"


@given(seconds=st.floats(0.5, 5.0), lost=st.floats(0, 0.99))
def test_the_threshold_is_where_it_is_documented(seconds: float, lost: float) -> None:
    """A program that computes is the host's victim from the documented share of lost time on."""
    evidence = Evidence(
        elapsed=seconds, seen=seconds, looks=20, cpu=seconds * (1 - lost), wanted=seconds, wanting=seconds, host=BUSY
    )
    if abs(lost - HOST_SHARE) > 0.001:
        assert cause_of(evidence) == ("host" if lost > HOST_SHARE else "task")


def test_each_cause_has_one_meaning() -> None:
    """The table is whole; only what is surely the policy's own doing teaches without being asked for."""
    assert set(MEANING) == set(get_args(Cause))
    limits = {cause: HitLimit(kind="wall", limit=1.0, used=1.0, elapsed=1.0, cause=cause) for cause in MEANING}
    assert [cause for cause, hit in limits.items() if not masked(hit, hung_counts=False)] == ["task"]
    assert [cause for cause, hit in limits.items() if not masked(hit, hung_counts=True)] == ["task", "hung"]
    assert not masked(None, hung_counts=False)
    assert [cause for cause, meaning in MEANING.items() if not meaning.counts] == ["host"]
