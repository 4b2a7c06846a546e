"""Forks with memory: sandboxes that go on where another one is, its processes included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec

from proofbox.errors import Busy
from proofbox.runtime.contract import Remembered
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.lifecycle import After, Life
from proofbox.sandbox.order import Order


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


def as_old(order: Order, life: Life) -> Order:
    """With what is left of its limit on time: the guest of whatever goes on from it holds to that."""
    limits = order.spec.limits
    if limits.wall is None:
        return order
    limits = msgspec.structs.replace(limits, wall=max(0.001, limits.wall - life.age()))
    return replace(order, spec=msgspec.structs.replace(order.spec, limits=limits))
