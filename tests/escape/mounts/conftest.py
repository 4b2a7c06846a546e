"""Whatever is tried here, what is mounted where stays."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.escape.conftest import Inside


@pytest.fixture(autouse=True)
async def mounted(inside: Inside) -> AsyncIterator[None]:
    """The sandbox's table of mounts is the one that it started with, to the last line."""
    before = await inside.box.read("/proc/self/mountinfo")
    yield
    assert await inside.box.read("/proc/self/mountinfo") == before
