"""The runtimes that the suite runs on: each module names one in ``RUNTIME``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proofbox.errors import Refused
from proofbox.sandbox.host import Host
from proofbox.testing.needs import skip_unless_required


@pytest.fixture(scope="module")
async def conformance_host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """This machine with that runtime. One that cannot be used here is skipped, or fails, with its own sentence."""
    name: str = request.module.RUNTIME
    isolated = name != "process"
    try:
        host = await Host.local(name, "container" if isolated else "none", allow_unisolated=not isolated)
    except Refused as refused:
        skip_unless_required(name, refused)
    yield host
    await host.aclose()
