"""Hosts of every runtime whose sandboxes can be looked into, and a directory on a disk."""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proofbox.errors import Refused
from proofbox.sandbox.host import Host
from proofbox.testing import blame
from proofbox.testing.blame import Experiment


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["native", "crun", pytest.param("runc", marks=pytest.mark.slow), "process"])
async def host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """One runtime of this machine."""
    try:
        host = await Host.local(request.param, "none", allow_unisolated=request.param == "process")
    except Refused as refused:
        pytest.skip(str(refused))
    if host.runtime_name in ("crun", "runc") and "cpus" not in host.probe.enforces:
        pytest.skip("without control groups there is nothing to see of it that is not seen of native")
    yield host
    await host.aclose()


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    """Files on a disk, not in memory: next to the tests."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".data-") as folder:
        path = Path(folder)
        blame.make_files(path)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="module")
def experiments() -> dict[str, Experiment]:
    """By name."""
    return {each.name: each for each in blame.experiments(random.Random(3), 0.8)}
