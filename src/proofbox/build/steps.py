"""The steps of a stage: each that changes files becomes a layer, kept by what it was made from."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from proofbox.build.command import Layers, run_command
from proofbox.build.copying import Copying, Item
from proofbox.build.events import StepOutput, Tell
from proofbox.build.ignore import NAME as IGNORE_FILE
from proofbox.build.inside import Gather, Gathered, Look, filler, gathered, looked
from proofbox.build.mounts import MOUNTED, Mounted, with_mounts
from proofbox.build.plan import Action, CopyFiles, MakeDirectory, RunCommand
from proofbox.build.recipe import Mount, Recipe
from proofbox.errors import InvalidInput, StoreFailed
from proofbox.host.idmap import find_ids
from proofbox.model.template import Layer, Template
from proofbox.sandbox.host import Host
from proofbox.templates.memo import Memo
from proofbox.templates.store import OVER, Store
from proofbox.templates.view import View, path_of

if TYPE_CHECKING:
    from proofbox.build.builder import Wanted

FORMAT: Final = 2
"""Changes with what a step's layer depends on, so that one of another version is not taken for this one's."""

POLL: Final = 0.05
"""Seconds between looks whether another build has made the step that is wanted here too."""

T = TypeVar("T")


@dataclass(slots=True)
class Built:
    """A stage as far as it is."""

    base: Template
    layers: Layers = ()


class Steps:
    """Makes the steps of one stage. ``find`` gives the stage or template that a step copies from."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        wanted: Wanted,
        tell: Tell,
        find: Callable[[str, int], Awaitable[Template]],
        host: Callable[[], Awaitable[Host]],
    ) -> None:
        self._recipe, self._store, self._wanted, self._tell = recipe, store, wanted, tell
        self._find, self._host = find, host
        self._memo = Memo(store.home, "steps")

    async def make(self, action: Action, built: Built) -> tuple[bool, Layers]:
        """Whether it was kept, and the layers that come on top; all pinned. Raises as ``build``."""
        try:
            return await self._make(action, built)
        except InvalidInput as error:
            raise InvalidInput(f"{self._where(action)}: {error}") from error
        except OSError as error:
            raise StoreFailed(f"{self._where(action)}: {error}") from error

    async def _make(self, action: Action, built: Built) -> tuple[bool, Layers]:
        match action:
            case RunCommand():
                mounted = [await self._mounted(action, mount) for mount in action.mounts]
                about: list[Any] = ["run", action.argv, action.env, action.cwd, action.user, action.network]
                about += [each.described() for each in mounted]
                return await self._kept_or(about, built, lambda: self._run(action, built, mounted))
            case CopyFiles():
                found = await self._gathered(action, self._template(built).layers)
                about = ["copy", found.digest]
                return await self._kept_or(about, built, lambda: _threaded(lambda: self._copy(found.copying, built)))
            case MakeDirectory():
                look = Look(action.path, self._template(built).layers)
                place = await _threaded(lambda: looked(look))
                if place.there:
                    return True, ()
                about = ["directory", action.path]
                made = Copying((Item(place.parts, stat.S_IFDIR | 0o755, (0, 0)),))
                return await self._kept_or(about, built, lambda: _threaded(lambda: self._copy(made, built)))
        raise InvalidInput(f"a step of the kind {type(action).__name__} is not known")

    async def _kept_or(
        self, about: list[Any], built: Built, make: Callable[[], Awaitable[Layers]]
    ) -> tuple[bool, Layers]:
        ids = (await _threaded(find_ids)).described()
        total = msgspec.json.encode([FORMAT, ids, built.base.digest, built.layers, about])
        key = hashlib.sha256(total).hexdigest()
        if not self._wanted.fresh and (kept := self._kept(key)) is not None:
            return True, kept
        async with self._alone(key):
            if not self._wanted.fresh and (kept := self._kept(key)) is not None:
                return True, kept
            layers = await make()
            self._memo.remember(key, msgspec.json.encode(layers).decode())
            return False, layers

    def _kept(self, key: str) -> Layers | None:
        text = self._memo.recall(key)
        if text is None:
            return None
        try:
            layers = msgspec.json.decode(text, type=Layers)
        except msgspec.MsgspecError:
            return None
        for _, digest in layers:
            self._store.pins.hold(digest)
            if not self._store.layers.has(digest):
                return None
        return layers

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        while (lock := self._memo.begin(key)) is None:  # noqa: ASYNC110 - it is another process that is waited for
            await anyio.sleep(POLL)
        try:
            yield
        finally:
            os.close(lock)

    async def _run(self, action: RunCommand, built: Built, mounted: Sequence[Mounted]) -> Layers:
        template = self._template(built)
        return await run_command(
            await self._host(),
            await _threaded(lambda: with_mounts(template, mounted, self._store)),
            action,
            self._recipe.limits,
            f"{self._recipe.source}, line {action.line}" if action.line else self._recipe.source,
            lambda pipe, data: self._tell(StepOutput(pipe=pipe, data=data)),
        )

    async def _mounted(self, action: RunCommand, mount: Mount) -> Mounted:
        if mount.source is None:
            return Mounted(mount)
        copy = CopyFiles(
            line=action.line,
            text=action.text,
            sources=(mount.source,),
            inline=(),
            to=MOUNTED,
            origin=mount.origin,
            owner=None,
            mode=None,
            unpack=False,
            whole=True,
        )
        return Mounted(mount, await self._gathered(copy, ()))

    async def _gathered(self, action: CopyFiles, into: tuple[Layer, ...]) -> Gathered:
        origin, ignored = View(()), ""
        if action.origin is not None:
            origin = View.of(await self._find(action.origin, action.line))
        elif self._wanted.context is not None:
            origin = View.of_directory(self._wanted.context)
            ignored = (origin.read(IGNORE_FILE, 1 << 20) or b"").decode("utf-8", "replace")
        elif action.sources:
            raise InvalidInput("files of a context are taken, and the build was given none")
        request = Gather(action, origin.layers, ignored, into)
        try:
            return await _threaded(lambda: gathered(request))
        except PermissionError as error:
            path = os.fsdecode(error.filename)
            remedy = f"let this user read it, or name it in {IGNORE_FILE}"
            raise InvalidInput(f"{path!r} cannot be read: {error.strerror}; {remedy}") from error

    def _copy(self, copying: Copying, built: Built) -> Layers:
        view = View.of(self._template(built))
        made = []
        for target, items in copying.targets(view).items():
            fill = filler(tuple(items), target, view.below(target).trees)
            made.append((path_of(target), self._store.put_layer(fill)))
        return tuple(made)

    def _template(self, built: Built) -> Template:
        """The stage so far, in memory; its digest names its start and its layers, for a record."""
        base = built.base
        about = msgspec.json.encode(["build", FORMAT, base.digest, built.layers])
        own = tuple(Layer(target, str(self._store.layers.tree(digest)), digest) for target, digest in built.layers)
        return msgspec.structs.replace(
            base,
            digest=f"sha256:{hashlib.sha256(about).hexdigest()}",
            layers=(*own, *base.layers),
            facts={OVER: base.facts.get(OVER, base.digest)},
        )

    def _where(self, action: Action) -> str:
        return f"{self._recipe.source}, line {action.line}" if action.line else f"{self._recipe.source}: {action.text}"


async def _threaded(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)
