"""Attack: reach the grader, or the next candidate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict


@pytest.mark.usefixtures("isolated")
async def test_the_graders_socket_cannot_be_seen(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """No listening Unix socket is visible from a candidate's sandbox, so none can be spoken to."""
    test = "def check(candidate):\n    assert candidate(1) == 0\n"
    verdict = await judge("return open('/proc/net/unix').read().count('proofbox-grader')", test=test)
    assert (verdict.ending, verdict.reason) == ("passed", "")


@pytest.mark.usefixtures("isolated")
async def test_nothing_of_a_candidate_reaches_the_next_one(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Files, a planted sitecustomize included, are gone with the sandbox."""
    places = (
        "['/tmp/planted', '/dev/shm/planted', '/usr/lib/python3/dist-packages/sitecustomize.py', '/var/tmp/planted']"
    )
    plant = f"""
        for place in {places}:
            try:
                open(place, "w").write("import os; os._exit(0)")
            except OSError:
                pass
        return 0
    """
    look = f"import os\nreturn sum(os.path.exists(p) for p in {places})"
    test = "def check(candidate):\n    assert candidate(1) == 0\n"
    assert (await judge(plant, test=test)).ending == "passed"
    verdict = await judge(look, test=test)
    assert (verdict.ending, verdict.reason) == ("passed", "")
