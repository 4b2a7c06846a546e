"""Options that several commands share: which runtime, which level, which limits."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proofbox.cli import parse
from proofbox.model.limits import LIMIT_KINDS
from proofbox.model.spec import LEVELS, Level

if TYPE_CHECKING:
    from proofbox.sandbox.host import Host

F = TypeVar("F", bound=Callable[..., Any])


def isolation(command: F) -> F:
    """``--runtime``, ``--level``, ``--allow-unisolated`` and ``--limit`` (a ``Limits`` or None)."""
    for option in reversed(
        (
            click.option("--runtime", metavar="NAME", help="What isolates (default: the best one of the level here)."),
            click.option(
                "--level", type=click.Choice(LEVELS), default="container", show_default=True, help="At least."
            ),
            click.option("--allow-unisolated", is_flag=True, help="Permit runtime `process`, which isolates nothing."),
            click.option(
                "--limit",
                "limits",
                metavar="KIND=VALUE",
                multiple=True,
                callback=parse.parsed(parse.limits),
                help=f"Such as memory=512M or wall=30s; repeatable. Kinds: {', '.join(LIMIT_KINDS)}.",
            ),
        )
    ):
        command = option(command)
    return command


@contextlib.asynccontextmanager
async def local_host(runtime: str | None, level: Level, allow_unisolated: bool) -> AsyncIterator[Host]:
    """This machine with what isolates, closed at the end: nothing of it is left then. Raises as ``Host.local``."""
    import anyio

    from proofbox.sandbox.host import Host

    host = await Host.local(runtime, level, allow_unisolated=allow_unisolated)
    try:
        yield host
    finally:
        with anyio.CancelScope(shield=True):
            await host.aclose()
