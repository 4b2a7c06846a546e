"""Programs that would raise who runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.escape.conftest import Inside

from proofbox.sandbox.result import CommandResult

SHOW = "import os; print(os.geteuid(), next(l for l in open('/proc/self/status') if l.startswith('CapEff')).split()[1])"


async def run_raising(
    inside: Inside, make: Callable[[str], Awaitable[CommandResult]]
) -> tuple[str, CommandResult, CommandResult]:
    """Who the attacker is, what root's making of such a program came to, and who the attacker is as that program."""
    me = (await inside.box.run(["python3", "-I", "-S", "-c", SHOW], user=inside.user)).stdout
    assert me
    program = f"/tmp/raise-{inside.user or 'root'}"
    try:
        await inside.box.run(["cp", "/usr/bin/python3", program])
        made = await make(program)
        return me, made, await inside.box.run([program, "-I", "-S", "-c", SHOW], user=inside.user)
    finally:
        await inside.box.run(["rm", "-f", program])
