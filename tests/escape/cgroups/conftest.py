"""Whatever is tried here, a process stays in its control group."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.escape.conftest import Inside


@pytest.fixture(autouse=True)
async def grouped(inside: Inside) -> AsyncIterator[None]:
    """Where it was born."""
    before = (await inside.box.run("cat /proc/self/cgroup")).stdout
    yield
    assert (await inside.box.run("cat /proc/self/cgroup")).stdout == before
