"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proofbox.runtime import registry
from proofbox.runtimes.fake import FakeRuntime
from proofbox.sandbox.host import Host


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of these tests."""
    return "asyncio"


@pytest.fixture
def fake() -> FakeRuntime:
    """The one scripted runtime of this process, without a script."""
    runtime = registry.runtime("fake")
    assert isinstance(runtime, FakeRuntime)
    fresh = FakeRuntime()
    runtime.scripts = fresh.scripts
    runtime.programs.clear()
    assert runtime.live == {}, "a test before this one left sandboxes"
    return runtime


@pytest.fixture
async def fake_host(fake: FakeRuntime) -> AsyncIterator[Host]:
    """This machine with the scripted runtime; every sandbox must be destroyed in the end."""
    host = await Host.local("fake", "none", allow_unisolated=True)
    yield host
    await host.aclose()
    assert fake.live == {}
