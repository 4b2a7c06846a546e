"""Attack: let another process answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict
from proofbox.sandbox.host import Host


async def test_two_processes_that_answer_do_not_pass(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Parent and child both serve the channel: more wrong answers are not a right one."""
    assert (await judge("import os\nos.fork()\nreturn None")).ending in ("failed", "limit")


async def test_a_child_that_goes_on_alone_does_not_pass(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The parent exits with success, the child answers wrongly."""
    assert (await judge("import os\nif os.fork():\n    os._exit(0)\nreturn None")).ending == "failed"


async def test_a_daemon_left_behind_is_killed(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A child in a session of its own does not delay the verdict, and right answers count."""
    verdict = await judge(
        "import os, time\nif x == 2 and os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nreturn x + x"
    )
    assert verdict.ending == "passed"


@pytest.mark.usefixtures("isolated")
async def test_a_fork_storm_ends_at_the_limit_on_processes(
    host: Host, judge: Callable[..., Awaitable[Verdict]], enforces: Callable[[str], None]
) -> None:
    """The kernel's counter of refused forks says which limit it was; without control groups nobody counts them."""
    enforces("processes")
    verdict = await judge("import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(600)")
    if "memory" not in host.probe.enforces:
        assert verdict.ending == "failed"
        return
    assert verdict.ending == "limit"
    assert verdict.limit is not None
    assert verdict.limit.kind == "processes"
