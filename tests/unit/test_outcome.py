"""What is told of a limit that fired."""

from __future__ import annotations

import pytest

from proofbox.model.outcome import memory_hit


@pytest.mark.parametrize(
    ("limit", "peak", "used"),
    [
        (100 << 20, 100 << 20, 100 << 20),
        (100 << 20, 250 << 20, None),
        (100 << 20, None, None),
        (None, 5 << 20, 5 << 20),
    ],
)
def test_a_peak_of_more_than_what_is_limited_is_not_told(limit: int | None, peak: int | None, used: int | None) -> None:
    """A figure above its limit would read as a limit that does not hold."""
    hit = memory_hit(limit, peak, 1.5)
    assert (hit.kind, hit.limit, hit.used, hit.cause) == ("memory", limit or 0, used, "task")
