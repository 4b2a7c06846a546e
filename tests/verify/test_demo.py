"""The candidates of the demonstration end as the demonstration says."""

from __future__ import annotations

import pytest

from proofbox.model.limits import LimitKind
from proofbox.sandbox.host import Host
from proofbox.tasks.demo import DEMOS, Demo
from proofbox.verify.function import FunctionVerifier


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
async def test_each_demo_ends_as_it_says(demo: Demo, host: Host, verifier: FunctionVerifier) -> None:
    """Ending and limit; each on real sandboxes."""
    enforced: frozenset[LimitKind] = host.probe.enforces | {"output"}
    if not demo.can_be_shown(enforced):
        pytest.skip(f"nothing on this host enforces the limit {demo.limit}")
    verdict = await verifier.judge(demo.task(enforced), demo.candidate)
    kind = verdict.limit.kind if verdict.limit is not None else None
    assert (verdict.ending, kind) == (demo.ending, demo.limit), verdict.reason
