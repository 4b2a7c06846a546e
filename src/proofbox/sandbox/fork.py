"""Freezing, forks and snapshots: a sandbox's file system as the start of others."""

from __future__ import annotations

import os
import secrets
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import msgspec

from proofbox.errors import InvalidInput, ProofboxError
from proofbox.host.copies import Purpose, copy_to_memory
from proofbox.host.idmap import find_ids
from proofbox.host.layers import Written, can_stack
from proofbox.host.subids import run_inside
from proofbox.model.limits import Limits
from proofbox.model.template import Template, targets
from proofbox.runtime.contract import Below
from proofbox.sandbox.given import as_count
from proofbox.sandbox.lifecycle import After, Life
from proofbox.sandbox.memory import as_old, remembered
from proofbox.sandbox.order import Order
from proofbox.sandbox.stack import DEPTH_MOST, Captured, Stack, capture, copy_directory, prune
from proofbox.templates.store import OVER, OVER_LAYERS, check_name, open_store
from proofbox.templates.tree import seen_owner
from proofbox.templates.unpack import Notes

if TYPE_CHECKING:
    from proofbox.sandbox.api import Sandbox
    from proofbox.sandbox.factory import Factory
    from proofbox.sandbox.host import Host

FORKS_MOST: Final = 10_000
_AT_ONCE: Final = 32
"""Children that are given their mounts at one time."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is needed to make sandboxes that start where this one is."""

    factory: Factory
    order: Order
    life: Life


class Forking:
    """The part of a ``Sandbox`` that makes others start from its file system."""

    def __init__(self, host: Host, origin: Origin) -> None:
        self._forking_host = host
        self._origin = origin

    @property
    def frozen(self) -> bool:
        """It runs nothing any more, and what it wrote is kept until it is closed."""
        return self._origin.life.frozen

    async def freeze(self) -> None:
        """Ends all its processes, its guest too, and keeps what it wrote as it is, read-only: the final state.

        Returns when all are gone. It can be forked and snapshotted then until it is closed, and ``usage`` be asked for;
        all else raises ``SandboxLost``, also for those who wait. Its limits on time stop counting, its memory stays
        charged to it. Safe to repeat. Raises ``Refused`` at a runtime that cannot, and changes nothing then;
        ``SandboxLost`` if it is gone, or does not end, and then nothing of it is left. Cancelled, it is frozen all the
        same before this returns.
        """
        await self._origin.life.freeze()

    def fork(
        self, count: int = 1, *, limits: Limits | None = None, memory: bool = False
    ) -> AbstractAsyncContextManager[tuple[Sandbox, ...]]:
        """New sandboxes that start from the file system as it is here now, live inside the ``async with``, gone after
        it. They share nothing that is written from now on, neither with each other nor with this one.

        **Processes are not carried over**, nor what is in ``/dev/shm``, but with ``memory=True``: then they go on in
        each child from the same instant, with random numbers, a clock, a machine id and a boot id of its own; what is
        left of the limit on time is theirs too, and ``limits`` cannot be given. ``microvm`` and ``runsc`` can do that,
        and only while no command, file operation or connection is under way; others refuse. What cannot be carried
        over (at ``runsc`` files that are open and removed, and ``/dev/shm``) is an error.

        What else was asked for this one holds for them too; ``limits`` replace its own, and that on the disk is for
        what they write themselves. From a frozen sandbox the cost does not grow with what was written. A live one is
        copied once, its processes paused for so long; its clocks go on.

        Raises ``InvalidInput``, ``Refused``, ``SandboxLost``, ``Busy`` (its processes did not pause), ``StoreFailed``
        (the copy), ``CreateFailed``; then, and when cancelled, no child is left and this one goes on as it was. They
        may outlive this one.
        """
        return self._fork(count, limits, memory)

    @asynccontextmanager
    async def _fork(self, count: int, limits: Limits | None, memory: bool) -> AsyncIterator[tuple[Sandbox, ...]]:
        factory, order, life = self._origin.factory, self._origin.order, self._origin.life
        if memory:
            if limits is not None:
                raise InvalidInput("a fork with memory goes on with the limits that it has: leave limits out")
            async with _with_memory(factory, order, life, count) as children:
                yield children
            return
        if limits is not None:
            spec = msgspec.structs.replace(order.spec, limits=self._forking_host.effective(limits))
            order = replace(order, spec=spec)
        async with forked(factory, order, life, count) as children:
            yield children

    async def snapshot(self, name: str | None = None) -> Template:
        """Its file system as it is now as a template, in this host's store; durable, and read back, when this returns.

        Any sandbox can be made of it, as often as wanted; with a ``name`` by that name, else by its digest or with the
        value. What it holds over this sandbox's template is one layer; a snapshot of a sandbox of it lies over it. A
        live sandbox is copied with its processes paused, and goes on; sockets are not part of it. Cost grows with what
        was written. Raises ``InvalidInput`` (the name), ``Refused``, ``SandboxLost``, ``Busy``, ``StoreFailed``; then,
        and when cancelled, nothing of it is left and a name means what it meant. Safe to repeat.
        """
        return await snapshot(self._origin.life, self._origin.order.template, name)


@asynccontextmanager
async def _with_memory(factory: Factory, order: Order, life: Life, count: int) -> AsyncIterator[tuple[Sandbox, ...]]:
    count = as_count(count, "the number of forks", FORKS_MOST, 1)
    order = as_old(order, life)
    lives: list[Life] = []
    try:
        async with remembered(life) as after:
            stack = await _remembered_state(life, order.template, after)
            try:
                await _make_all(factory, order, stack, count, lives, after)
            finally:
                stack.release()
        yield tuple(factory.hand_out(order, each) for each in lives)
    finally:
        await _end(lives)


async def _end(lives: Sequence[Life]) -> None:
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as ending:
            for each in lives:
                ending.start_soon(each.end)


@asynccontextmanager
async def forked(factory: Factory, order: Order, life: Life, count: int) -> AsyncIterator[tuple[Sandbox, ...]]:
    """See ``Sandbox.fork``."""
    count = as_count(count, "the number of forks", FORKS_MOST, 1)
    stack = await _origin(life, order.template)
    lives: list[Life] = []
    try:
        await _make_all(factory, order, stack, count, lives)
        yield tuple(factory.hand_out(order, each) for each in lives)
    finally:
        await _end(lives)
        stack.release()


async def _make_all(
    factory: Factory, order: Order, stack: Stack, count: int, lives: list[Life], after: After | None = None
) -> None:
    """All or, with the first error, none more; ``lives`` are those that are to be ended."""
    errors: list[ProofboxError] = []

    async def make(below: tuple[Below, ...]) -> None:
        try:
            lives.append(await factory.make(order, secrets.token_hex(6), stack=stack, below=below, after=after))
        except ProofboxError as error:
            errors.append(error)
            making.cancel_scope.cancel()

    for begun in range(0, count, _AT_ONCE):
        async with stack.taken(min(_AT_ONCE, count - begun)) as sets, anyio.create_task_group() as making:
            for below in sets:
                making.start_soon(make, below)
        if errors:
            raise errors[0]


async def _origin(life: Life, template: Template) -> Stack:
    """What children of it start from, which the caller has to release."""
    life.stack.flatten_if_long(template)
    return await _stackable(await _state(life, template), template)


async def _remembered_state(life: Life, template: Template, after: After) -> Stack:
    """What lies below those that go on from there, which the caller has to release."""
    below = life.stack.shortened()
    layer = after.remembered.layer
    if layer is None:
        return below
    layer.hold()
    try:
        state = below.over(layer)
    finally:
        below.release()
    return await _stackable(state, template)


async def _stackable(stack: Stack, template: Template) -> Stack:
    """The same in a form that can lie below a sandbox. It releases what it is given."""
    if len(stack.layers) > DEPTH_MOST:
        longer = stack
        try:
            await longer.flattened()
            stack = longer.shortened()
        finally:
            longer.release()
    if len(stack.layers) <= DEPTH_MOST and (can_stack() or not any(isinstance(each, Written) for each in stack.layers)):
        return stack
    try:
        return Stack((await capture(stack.layers, template),))
    finally:
        stack.release()


async def _state(life: Life, template: Template, purpose: Purpose = "compare") -> Stack:
    """All that lies over its template, as it is now; the caller has to release it."""
    below = life.stack.shortened()  # held: it may end while it is copied
    try:
        return below.over(_own_layer(life) if life.frozen else await _captured_alive(life, template, purpose))
    finally:
        below.release()


def _own_layer(life: Life) -> Written:
    """What it writes over its template, held."""
    runtime, handle = life.layering()
    layer = runtime.layer(handle)
    layer.hold()
    return layer


async def _captured_alive(life: Life, template: Template, purpose: Purpose) -> Written | Captured:
    """In memory where there is room: the copy is no more durable than what it is a copy of, and its processes wait."""
    layer = _own_layer(life)
    runtime, handle = life.layering()
    try:
        async with runtime.paused(handle):
            return await copy_to_memory(layer) or await capture((layer,), template, purpose)
    finally:
        layer.release()


async def snapshot(life: Life, template: Template, name: str | None) -> Template:
    """See ``Sandbox.snapshot``."""
    if name is not None:
        check_name(name)
    state = await _state(life, template, "keep")
    try:
        captured = await _in_one(state, template)
    finally:
        state.release()
    try:
        template = await _made_flat(captured, template)
        return await anyio.to_thread.run_sync(_keep, captured, template, life.spec.id, name)
    finally:
        captured.release()


async def _in_one(state: Stack, template: Template) -> Captured:
    only = state.layers[0]
    if len(state.layers) == 1 and isinstance(only, Captured):
        only.hold()
        return only
    return await capture(state.layers, template, "keep")


async def _made_flat(captured: Captured, template: Template) -> Template:
    """What a snapshot is to lie over. A line of snapshots that is as long as one may be becomes part of it."""
    own = len(template.layers) - int(template.facts.get(OVER_LAYERS, len(template.layers)))
    snapshots = template.layers[:own]
    deepest = max(Counter(layer.target for layer in snapshots).values(), default=0)
    if deepest < DEPTH_MOST:
        return template
    bottom = msgspec.structs.replace(
        template, layers=template.layers[own:], digest=template.facts[OVER], facts={}, name=template.facts[OVER]
    )
    numbers = targets(template)
    for layer in snapshots:
        into = captured.directory / str(numbers.index(layer.target))
        await copy_directory(Path(layer.source), into, "keep")
    await prune(captured.directory, bottom)
    return bottom


def _keep(captured: Captured, template: Template, sandbox: str, name: str | None) -> Template:
    store = open_store()
    told = [
        number
        for number, target in enumerate(targets(template))
        if _says_something(captured.directory / str(number), _on_top(template, target))
    ]
    # None is left out before the last one: by their order the targets are mounted, /usr before what is below it.
    parts = targets(template)[: max(told, default=0) + 1]
    layers = [
        (target, store.put_layer(_mover(captured.directory / str(number)), read_back=True))
        for number, target in enumerate(parts)
    ]
    left_out = captured.left_out
    facts = {"snapshot_of": sandbox}
    if left_out.sockets:
        facts["sockets_left_out"] = str(left_out.sockets)
    if left_out.attributes:
        facts["attributes_left_out"] = str(left_out.attributes)
    return store.put_template(
        layers, env=template.env, cwd=template.cwd, user=template.user, facts=facts, name=name, over=template
    )


def _on_top(template: Template, target: str) -> Path:
    return Path(next(layer.source for layer in template.layers if layer.target == target))


def _says_something(part: Path, below: Path) -> bool:
    """Whether a layer is more than an empty directory like the one that it lies on."""
    try:
        if any(part.iterdir()):
            return True
    except PermissionError:  # closed to its own owner: that says enough
        return True
    mine, other = part.stat(), below.stat()
    return mine.st_mode != other.st_mode or seen_owner(mine) != seen_owner(other)


def _mover(part: Path) -> Callable[[Path], Notes]:
    def fill(tree: Path) -> Notes:
        found, namespace = part.stat(), find_ids().namespace
        if namespace >= 0 and found.st_uid != os.geteuid():
            run_inside(namespace, ["mv", "-T", "--", str(part), str(tree)])
            return Notes()
        part.chmod(0o700)  # who is not root may not move a directory that it could not write to
        part.rename(tree)
        tree.chmod(stat.S_IMODE(found.st_mode))
        return Notes()

    return fill
