"""The kernel's tracing and debugging: what everybody's calls are, with their arguments."""

from __future__ import annotations

from tests.escape.attempts import CLOSED, changing, reading
from tests.escape.conftest import Inside

ATTEMPTS = {
    **changing("/sys/kernel/debug/tracing/tracing_on"),
    **reading("/sys/kernel/tracing/trace", "/sys/kernel/debug/sched/debug"),
}


async def test_nothing_is_traced(inside: Inside) -> None:
    """Its files are not there."""
    await inside.expect(ATTEMPTS, "empty", *CLOSED)
