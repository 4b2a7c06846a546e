"""What the trials of a run stand on, read once before the first one and recorded with them."""

from __future__ import annotations

from collections.abc import Iterable

import anyio.to_thread

from proofbox.model.limits import Limits
from proofbox.model.run import HostFacts
from proofbox.model.task import Task
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store


async def host_facts(
    host: Host, tasks: Iterable[Task], limits: Limits | None = None, *, sandboxes: int = 1
) -> HostFacts:
    """The host's facts, the limits that a sandbox gets here, and the digest of every template that the tasks name.

    ``sandboxes`` is how many the run will hold at one time, its graders left out. Opens one and looks at how it is kept
    apart; it is gone afterwards. Raises ``Refused`` for limits that nothing enforces and for more sandboxes than this
    host can hold, ``UnknownTemplate``, ``StoreFailed``, ``CreateFailed``, ``SandboxLost``.
    """
    names = sorted({task.template for task in tasks})
    short_of = await anyio.to_thread.run_sync(host.check_room, sandboxes + len(names), limits)
    isolation = None
    if names:
        async with host.open_sandbox(names[0]) as box:
            isolation = await box.isolation()
    return HostFacts(
        runtime=host.runtime_name,
        level=host.level,
        templates=await anyio.to_thread.run_sync(_digests, names),
        limits=host.effective(limits),
        enforces=tuple(sorted(host.probe.enforces)),
        notes=(*host.probe.notes, *short_of),
        facts=dict(host.probe.facts),
        isolation=isolation,
    )


def _digests(names: Iterable[str]) -> dict[str, str]:
    store = open_store()
    return {name: store.resolve(name).digest for name in names}
