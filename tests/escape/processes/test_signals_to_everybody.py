"""kill(-1): a signal to whoever may be signalled."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "whoever can be signalled": """
import signal
signal.signal(signal.SIGURG, signal.SIG_IGN)
os.kill(-1, signal.SIGURG)
""",
}


async def test_everybody_means_everybody_inside(inside: Inside) -> None:
    """The witness outside is as alive as before."""
    await inside.expect(ATTEMPTS, "done", "ESRCH", "EPERM")
