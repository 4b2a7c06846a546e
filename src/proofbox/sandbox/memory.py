"""Forks with memory: sandboxes that go on where another one is, its processes included."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import msgspec

from proofbox.errors import Busy, ProofboxError
from proofbox.runtime.contract import Remembered
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.lifecycle import After, Life
from proofbox.sandbox.order import Order

if TYPE_CHECKING:
    from proofbox.sandbox.factory import Factory


@asynccontextmanager
async def remembered(life: Life) -> AsyncIterator[After]:
    """What others go on from, while this is open. Raises ``Refused``, ``Busy``, ``SandboxLost``, ``CreateFailed``."""
    runtime, handle = life.remembering
    channel = life.channel
    assert handle is not None  # it is live
    await _at_rest(life, channel)
    asked = channel.asked
    kept: Remembered = await runtime.remember(handle)
    try:
        if not channel.at_rest or channel.asked != asked:
            raise _busy(life)
        yield After(kept, channel)
    finally:
        kept.release()


async def _at_rest(life: Life, channel: Channel) -> None:
    """All that was said so far has been heard: the guest has answered a question that came after it."""
    if not channel.at_rest:
        raise _busy(life)
    await channel.ask().answer()
    if not channel.at_rest:
        raise _busy(life)


def _busy(life: Life) -> Busy:
    return Busy(
        f"sandbox {life.spec.id} is being used: it can be forked with its memory while no command, file operation or "
        f"connection is under way; what runs on in the background is carried over"
    )


async def make_all(factory: Factory, order: Order, life: Life, count: int, lives: list[Life]) -> None:
    """So many that go on where ``life`` is; all or, with the first error, none more. ``lives`` are to be ended.

    Their limit on time is what is left of its own: its guest holds to that.
    """
    limits = order.spec.limits
    if limits.wall is not None:
        limits = msgspec.structs.replace(limits, wall=max(0.001, limits.wall - life.age()))
    order = replace(order, spec=msgspec.structs.replace(order.spec, limits=limits))
    errors: list[ProofboxError] = []
    async with remembered(life) as after:

        async def make() -> None:
            try:
                lives.append(await factory.make(order, secrets.token_hex(6), after=after))
            except ProofboxError as error:
                errors.append(error)
                making.cancel_scope.cancel()

        async with anyio.create_task_group() as making:
            for _ in range(count):
                making.start_soon(make)
    if errors:
        raise errors[0]
