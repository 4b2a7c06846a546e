"""Being deaf, stopped, silent or elsewhere when time is up."""

from __future__ import annotations

import anyio
from tests.escape.conftest import Inside

from proofbox.model.outcome import HitLimit

TRICKS = (
    "trap '' TERM INT HUP ALRM XCPU; while :; do sleep 1; done",
    "kill -STOP $$; sleep 60",
    "setsid sleep 60",
    "exec 1>&- 2>&-; sleep 60",
)


async def test_time_is_up_whatever_the_command_does(inside: Inside) -> None:
    """The clock that counts is the host's: deaf, stopped, silent or in another session, each ends in time."""

    async def one(trick: str) -> None:
        result = await inside.box.run(trick, user=inside.user, timeout=0.15)
        assert isinstance(result.outcome, HitLimit), trick
        assert result.outcome.kind == "command_wall"

    async with anyio.create_task_group() as group:
        for trick in TRICKS:
            group.start_soon(one, trick)
