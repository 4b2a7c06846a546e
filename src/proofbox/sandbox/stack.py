"""What lies between a forked sandbox and its template: the layers of those that it comes from."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from proofbox.errors import ProofboxError, StoreFailed
from proofbox.host.copies import Purpose, copy_layer, directory, prune_layer
from proofbox.host.home import private_directory, sweep_workshops, workshop
from proofbox.host.layers import Held, LeftOut, Released, Written, discard, in_background
from proofbox.kit.loop import Background
from proofbox.model.template import Template, targets
from proofbox.runtime.contract import Below
from proofbox.templates.store import open_store

log = logging.getLogger("proofbox.sandbox")

DEPTH_MOST = 32
"""Layers of other sandboxes below one. Each makes every look-up of a missing name longer; beyond, they become one."""
DEPTH_LONG = 16
"""From so many on what a sandbox lies over is made one layer in the background, for those that will be forked next."""


@dataclass(slots=True, eq=False)
class Captured(Held):
    """A copy of layers on disk, removed when it is let go, or swept after this process."""

    directory: Path
    left_out: LeftOut
    _workshop: ExitStack
    flat: Released | None = None
    """As in ``Written``."""

    def _let_go(self) -> None:
        if self.flat is not None:
            self.flat.release()
        in_background(self._workshop.close)


class Flattening:
    """One layer that holds what a stack does, in the making in the background, or made. The stack's first layer, which
    always lies over the same ones, has it and lets it go.

    It belongs to the event loop, and ends with it; what is half-made is removed then, or swept after a kill. Where it
    fails the stack stays what it is.
    """

    def __init__(self, stack: Stack, template: Template) -> None:
        """Begins, and lets go of ``stack`` in the end."""
        self.layer: Captured | None = None
        self._stack = stack
        self._template = template
        self._work = Background(self._make, "proofbox makes layers one")

    async def _make(self) -> None:
        top = self._stack.layers[0]
        try:
            self.layer = await capture(self._stack.layers, self._template)
        except ProofboxError as error:
            log.warning("layers of forks stay as many as they are: %s", error)
        finally:
            if self.layer is None:
                top.flat = None  # whoever forks next tries again
            self._stack.release()

    async def wait(self) -> None:
        """Until it is made, or has failed. Safe to cancel."""
        await self._work.wait()

    def release(self) -> None:
        """Lets go of what was made. Nobody does while it is in the making: that holds all that could."""
        if self.layer is not None:
            self.layer.release()


@dataclass(slots=True, eq=False)
class Stack(Held):
    """Layers, the first one on top. A user holds the stack, the stack holds its layers."""

    layers: tuple[Written | Captured, ...] = ()

    def _let_go(self) -> None:
        for layer in self.layers:
            layer.release()

    def over(self, layer: Written | Captured) -> Stack:
        """A new one with this layer on top, which it owns."""
        for below in self.layers:
            below.hold()
        return Stack((layer, *self.layers))

    def shortened(self) -> Stack:
        """The same in fewer layers where some have been made one meanwhile; a user of its own."""
        for number, layer in enumerate(self.layers):
            if isinstance(layer.flat, Flattening) and layer.flat.layer is not None:
                layers = (*self.layers[:number], layer.flat.layer)
                for each in layers:
                    each.hold()
                return Stack(layers)
        return self.hold()

    def flatten_if_long(self, template: Template) -> None:
        """Begins to make it one layer, unless it is short above what is being made one. Returns at once."""
        above = next((number for number, layer in enumerate(self.layers) if layer.flat), len(self.layers))
        if above >= DEPTH_LONG:
            self.layers[0].flat = Flattening(self.shortened(), template)

    async def flattened(self) -> None:
        """Waits for what is being made one of it, if that is so. Safe to cancel."""
        for layer in self.layers:
            if isinstance(layer.flat, Flattening):
                await layer.flat.wait()
                return

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[list[tuple[Below, ...]]]:
        """So many sets of what a runtime needs to put a sandbox over it. Raises ``CreateFailed``."""
        mounts: list[int] = []
        written = [layer for layer in self.layers if isinstance(layer, Written)]
        try:
            if written:
                mounts = await anyio.to_thread.run_sync(_copies, written, count)
            left = iter(mounts)
            yield [tuple(self._below(left)) for _ in range(count)]
        finally:
            for mount in mounts:
                discard(mount)

    def _below(self, mounts: Iterator[int]) -> Iterator[Below]:
        for layer in self.layers:
            if isinstance(layer, Written):
                yield Below(mount=next(mounts), base=layer.base)
            else:
                yield Below(directory=str(layer.directory))


def _copies(layers: Sequence[Written], count: int) -> list[int]:
    """Detached mounts of all of them, so many times, in their order. Blocks."""
    slots = [layer.attach() for layer in layers]
    found: list[int] = []
    try:
        for _ in range(count):
            for kept, slot in slots:
                found += kept.copies([slot])
    except BaseException:
        for each in found:
            discard(each)
        raise
    return found


@contextmanager
def _place(home: Path) -> Iterator[Path]:
    making = private_directory(private_directory(home) / "making")
    sweep_workshops(making)
    with workshop(making) as place:
        (place / "layer").mkdir(mode=0o700)
        yield place / "layer"


async def capture(layers: Sequence[Written | Captured], template: Template, purpose: Purpose = "") -> Captured:
    """A copy of these in one, on the disk of the template store; nobody may write to them meanwhile.

    If they are several it is to lie over the template. ``purpose`` as in ``host.copies.copy_layer``. Its cost grows
    with what they hold. Raises ``StoreFailed``; then, and when cancelled, nothing is left.
    """
    store = open_store()
    with ExitStack() as stack:
        try:
            place = stack.enter_context(_place(store.home))
        except OSError as error:
            raise StoreFailed(f"copy of a sandbox's layer in {store.home}: {error}") from error
        left_out = LeftOut()
        for layer in layers:
            left_out += layer.left_out + await _copy(layer, place, purpose)
        if len(layers) > 1:
            await prune(place, template)
        return Captured(place, left_out, stack.pop_all())


async def prune(layer: Path, template: Template) -> None:
    """Removes from a layer what hides nothing of a template that it will lie over; as an overlay would show it."""
    parts = [
        (number, each.source)
        for number, target in enumerate(targets(template))
        for each in template.layers
        if each.target == target
    ]
    await prune_layer(layer, parts)


async def copy_directory(source: Path, into: Path, purpose: Purpose = "") -> LeftOut:
    """Copies a kept layer below what a directory holds already. As ``host.copies.copy_layer``."""
    with directory(source) as found, directory(into) as target:
        return await copy_layer(found, target, 0, str(into), purpose)


async def _copy(layer: Written | Captured, into: Path, purpose: Purpose) -> LeftOut:
    if isinstance(layer, Captured):
        return await copy_directory(layer.directory, into, purpose)
    with directory(into) as target:
        return await copy_layer(layer.descriptor, target, layer.base, str(into), purpose)
