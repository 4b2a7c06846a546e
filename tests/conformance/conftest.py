"""The runtimes that the suite runs on: each module names one in ``RUNTIME``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from proofbox.errors import Refused
from proofbox.sandbox.host import Host


@pytest.fixture(scope="module")
async def conformance_host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """This machine with that runtime. One that cannot be used here is skipped with the sentence that ``doctor`` prints.

    ``PROOFBOX_REQUIRE=native,oci`` names runtimes that must be usable: there, a skip would hide a failure.
    """
    name: str = request.module.RUNTIME
    isolated = name != "process"
    try:
        host = await Host.local(name, "container" if isolated else "none", allow_unisolated=not isolated)
    except Refused as refused:
        if name in os.environ.get("PROOFBOX_REQUIRE", "").split(","):
            raise
        pytest.skip(str(refused))
    yield host
    await host.aclose()
