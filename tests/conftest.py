"""Fixtures that more than one folder of tests uses. A folder that needs others of these names has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proofbox.errors import Refused
from proofbox.sandbox.host import Host
from proofbox.verify.function import FunctionVerifier


@pytest.fixture(scope="module")
async def host(anyio_backend: str) -> AsyncIterator[Host]:
    """Real isolation where this host has it; else the process runtime, which shows what does not need isolation."""
    try:
        host = await Host.local()
    except Refused:
        host = await Host.local("process", "none", allow_unisolated=True)
    yield host
    await host.aclose()


@pytest.fixture(scope="module")
async def verifier(host: Host) -> AsyncIterator[FunctionVerifier]:
    """One for all tests of a file, as a run has one: what one candidate does to it would show in the next."""
    async with FunctionVerifier(host) as verifier:
        yield verifier
