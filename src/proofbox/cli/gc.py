"""``proofbox gc``: removes what processes that died have left behind."""

from __future__ import annotations

import click


@click.command()
def gc() -> None:
    """Removes cgroups, directories and records of processes that are gone, and templates that have no name any more.

    Every process that opens sandboxes does this at its start as well. What a living process owns is never touched.
    Safe to repeat, and to run in parallel.
    """
    import anyio

    from proofbox.templates import store

    told(anyio.run(_collect) + store.open_store().collect())


def told(removed: int) -> None:
    """Says how many things there were."""
    click.echo(f"{removed} thing{'' if removed == 1 else 's'} removed")


async def _collect() -> int:
    from proofbox.runtime import reaper

    return await reaper.reap()
