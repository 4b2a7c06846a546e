"""setrlimit(2): higher limits than were given, hard ones included."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a higher limit on priority": "import resource; resource.setrlimit(resource.RLIMIT_RTPRIO, (99, 99))",
    "a higher limit on files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))",
    "more pending signals": "import resource; resource.setrlimit(resource.RLIMIT_SIGPENDING, (1 << 30, 1 << 30))",
    "a longer queue of messages": "import resource; resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1 << 30, 1 << 30))",
}
RAISED = "ValueError('not allowed to raise maximum limit')"


async def test_no_limit_is_raised(inside: Inside) -> None:
    """By root neither."""
    await inside.expect(ATTEMPTS, RAISED)
