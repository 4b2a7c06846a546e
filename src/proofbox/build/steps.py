"""The steps of a stage: each that changes files becomes a layer, kept by what it was made from."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from proofbox.build.command import Layers, run_command
from proofbox.build.copying import Copying, gather
from proofbox.build.events import StepOutput, Tell
from proofbox.build.ignore import NAME as IGNORE_FILE
from proofbox.build.ignore import Ignored
from proofbox.build.ignore import parse as parse_ignore
from proofbox.build.plan import Action, CopyFiles, MakeDirectory, RunCommand
from proofbox.build.recipe import Recipe
from proofbox.errors import InvalidInput, StoreFailed
from proofbox.kit.newtree import Entry, Parts
from proofbox.model.template import Layer, Template
from proofbox.sandbox.host import Host
from proofbox.templates.memo import Memo
from proofbox.templates.store import OVER, Store
from proofbox.templates.unpack import NewTree, Notes
from proofbox.templates.view import View, names_of

if TYPE_CHECKING:
    from proofbox.build.builder import Wanted

FORMAT: Final = 1
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
                about = ["run", action.argv, action.env, action.cwd, action.user, action.network]
                return await self._kept_or(about, built, lambda: self._run(action, built))
            case CopyFiles():
                try:
                    copying = await self._gathered(action, built)
                    about = ["copy", await _threaded(copying.digest)]
                except PermissionError as error:
                    path = os.fsdecode(error.filename)
                    remedy = f"let this user read it, or name it in {IGNORE_FILE}"
                    raise InvalidInput(f"{path!r} cannot be read: {error.strerror}; {remedy}") from error
                return await self._kept_or(about, built, lambda: _threaded(lambda: self._copy(copying, built)))
            case MakeDirectory():
                view = self._view(built)
                parts = view.resolve(names_of(action.path))
                found = view.find(parts)
                if found is not None and stat.S_ISDIR(found.found.st_mode):
                    return True, ()
                about = ["directory", action.path]
                return await self._kept_or(about, built, lambda: _threaded(lambda: self._directory(parts, view)))
        raise InvalidInput(f"a step of the kind {type(action).__name__} is not known")

    async def _kept_or(
        self, about: list[Any], built: Built, make: Callable[[], Awaitable[Layers]]
    ) -> tuple[bool, Layers]:
        total = msgspec.json.encode([FORMAT, os.geteuid() == 0, built.base.digest, built.layers, about])
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

    async def _run(self, action: RunCommand, built: Built) -> Layers:
        return await run_command(
            await self._host(),
            self._template(built),
            action,
            self._recipe.limits,
            f"{self._recipe.source}, line {action.line}" if action.line else self._recipe.source,
            lambda pipe, data: self._tell(StepOutput(pipe=pipe, data=data)),
        )

    async def _gathered(self, action: CopyFiles, built: Built) -> Copying:
        into = self._view(built)
        if action.origin is not None:
            origin, ignored = View.of(await self._find(action.origin, action.line)), Ignored()
        elif self._wanted.context is not None:
            origin, ignored = View.of_directory(self._wanted.context), _ignored(self._wanted.context)
        elif action.sources:
            raise InvalidInput("files of a context are copied, and the build was given none")
        else:
            origin, ignored = View(()), Ignored()
        return await _threaded(lambda: gather(action, origin, ignored, into))

    def _copy(self, copying: Copying, built: Built) -> Layers:
        view = self._view(built)
        made = []
        for target, items in copying.targets(view).items():
            below = view.below(target)

            def fill(tree: Path, items: Any = items, target: Parts = target, below: Any = below) -> Notes:
                return copying.fill(tree, items, target, below)

            made.append((_path(target), self._store.put_layer(fill)))
        return tuple(made)

    def _directory(self, parts: Parts, view: View) -> Layers:
        target = view.target(parts[:-1])

        def fill(tree: Path) -> Notes:
            notes = Notes()
            with NewTree(tree, notes, view.below(target)) as new:
                new.put(Entry(b"/".join(parts[len(target) :]), stat.S_IFDIR | 0o755, 0, 0))
            return notes

        return ((_path(target), self._store.put_layer(fill)),)

    def _view(self, built: Built) -> View:
        return View.of(self._template(built))

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


def _ignored(context: Path) -> Ignored:
    text = View.of_directory(context).read(IGNORE_FILE, 1 << 20)
    return Ignored() if text is None else parse_ignore(text.decode("utf-8", "replace"))


def _path(target: Parts) -> str:
    return "/" + os.fsdecode(b"/".join(target))
