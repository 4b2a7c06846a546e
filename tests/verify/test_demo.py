"""The candidates of the demonstration end as the demonstration says, at every level."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.conftest import best_host, open_host

from proofbox.model.limits import LimitKind
from proofbox.sandbox.host import Host
from proofbox.tasks.demo import DEMOS, Demo
from proofbox.verify.function import FunctionVerifier


@pytest.fixture(scope="module", params=["", "runsc", pytest.param("microvm", marks=pytest.mark.slow)])
async def host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """The best runtime here, and those of the levels above."""
    async with open_host(request.param) if request.param else best_host() as found:
        yield found


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
async def test_each_demo_ends_as_it_says(demo: Demo, host: Host, verifier: FunctionVerifier) -> None:
    """Ending and limit; each on real sandboxes."""
    enforced: frozenset[LimitKind] = host.probe.enforces | {"output"}
    if not demo.can_be_shown(enforced):
        pytest.skip(f"nothing on this host enforces the limit {demo.limit}")
    task = demo.task(enforced, emulated=host.probe.facts.get("platform") == "tcg")
    verdict = await verifier.judge(task, demo.candidate)
    kind = verdict.limit.kind if verdict.limit is not None else None
    assert demo.ends_so(verdict.ending, kind, host.level), (verdict.ending, kind, verdict.reason)
