"""Something that runs on in a sandbox, and can be seen to."""

from __future__ import annotations

from typing import Final

import anyio

from proofbox.sandbox.api import Sandbox

COUNTER: Final = (
    "echo of the parent > /tmp/file; sleep 100000 </dev/null >/dev/null 2>&1 & echo $! > /tmp/sleeper;"
    " (exec 8>>/tmp/open; n=0; while :; do n=$((n + 1)); echo $n >&8; echo $n > /tmp/new; mv /tmp/new /tmp/count;"
    " sleep 0.2; done) </dev/null >/dev/null 2>&1 &"
)
"""Two processes: one that counts, with a file held open, and one whose number can be asked for."""


async def count(box: Sandbox, above: int = 0) -> int:
    """What its counter has come to, once that is more than ``above``. Raises ``TimeoutError`` after two minutes."""
    with anyio.fail_after(120):
        while True:
            told = (await box.run("cat /tmp/count")).stdout.strip()
            if told and int(told) > above:
                return int(told)
            await anyio.sleep(0.05)
