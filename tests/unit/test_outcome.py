"""What is told of a limit that fired."""

from __future__ import annotations

import pytest

from proofbox.model.limits import MIB
from proofbox.model.outcome import memory_hit


@pytest.mark.parametrize(
    ("limit", "peak", "used"),
    [
        (100 * MIB, 100 * MIB, 100 * MIB),
        (100 * MIB, 250 * MIB, None),
        (100 * MIB, None, None),
        (None, MIB, MIB),
    ],
)
def test_a_peak_of_more_than_what_is_limited_is_not_told(limit: int | None, peak: int | None, used: int | None) -> None:
    """A figure above its limit would read as a limit that does not hold."""
    hit = memory_hit(limit, peak, 1.5)
    assert (hit.kind, hit.limit, hit.used, hit.cause) == ("memory", limit or 0, used, "task")
