"""What a sandbox says of its isolation, where there is little of it, and in the record of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proofbox.errors import Refused
from proofbox.model.isolation import Isolation
from proofbox.model.task import FunctionTests, Task
from proofbox.sandbox.host import Host
from proofbox.tasks.demo import PROMPT, TEST
from proofbox.testing.needs import skip_unless_required
from proofbox.trial.facts import host_facts

pytestmark = [pytest.mark.anyio, pytest.mark.container]


@pytest.fixture
async def isolated() -> AsyncIterator[Host]:
    """The best runtime here."""
    try:
        host = await Host.local()
    except Refused as refused:
        skip_unless_required("native", refused)
    yield host
    await host.aclose()


async def test_without_isolation_everything_is_shared(process_host: Host) -> None:
    """The report of the runtime that isolates nothing says so."""
    async with process_host.open_sandbox() as box:
        told = await box.isolation()
    assert (told.level, told.own, told.seccomp) == ("none", (), 0)
    assert not {"mnt", "net", "pid", "user"} - {*told.shared, *told.unseen}


async def test_the_hosts_network_is_told(isolated: Host) -> None:
    """A sandbox that shares it says so, where the host lets us look."""
    async with isolated.open_sandbox(network="host") as shared, isolated.open_sandbox() as apart:
        assert "net" not in (await shared.isolation()).own
        assert "net" not in (await apart.isolation()).shared


async def test_a_run_records_it(isolated: Host) -> None:
    """Found on a sandbox before the first trial."""
    tests = FunctionTests(prompt=PROMPT, entry_point="running_max", test=TEST, timeout=1.0)
    facts = await host_facts(isolated, [Task(id="one", instruction=PROMPT, judge=tests)])
    assert isinstance(facts.isolation, Isolation)
    assert (facts.isolation.runtime, facts.isolation.level) == (isolated.runtime_name, isolated.level)
