"""/proc/locks: who has locked which file, on the whole machine."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

ATTEMPTS = {"locks on files": "said = read('/proc/locks') or 'none'"}


@pytest.mark.usefixtures("neighbour")
async def test_locks_of_others_are_not_told(inside: Inside) -> None:
    """There is no list of them."""
    await inside.expect(ATTEMPTS, "ENOENT", "none")
