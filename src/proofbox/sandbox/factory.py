"""Makes the sandboxes of one host: so many at a time, and never more than fit into the memory they reserve."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from time import clock_gettime_ns, time_ns
from typing import TYPE_CHECKING, Final, cast

import anyio
import msgspec
from anyio.lowlevel import RunVar

from proofbox.errors import Busy, CreateFailed, InvalidInput, SandboxLost
from proofbox.host.memory import available_memory
from proofbox.host.remedies import explain
from proofbox.kit.clock import paused
from proofbox.model.identity import identity_of, new_identity
from proofbox.model.limits import Limits
from proofbox.runtime import registry
from proofbox.runtime.contract import Below, OwnDirectory, Runtime
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.fork import Origin
from proofbox.sandbox.isolation import check, tell, watching
from proofbox.sandbox.lifecycle import COARSE, After, Life
from proofbox.sandbox.order import Order, check_id
from proofbox.sandbox.stack import Stack
from proofbox.sandbox.starts import Starts
from proofbox.wire.frames import LOOK

if TYPE_CHECKING:
    from proofbox.sandbox.host import Host

AT_ONCE: Final = min(32, max(8, 4 * len(os.sched_getaffinity(0))))
"""Sandboxes of one host that are in the making at one time in one event loop. More gain nothing and make everyone wait:
on two processors, native made 485 a second 8 at a time and 517 with 200 at a time, where each took ten times as long
and the event loop stood still for 0.16 s; crun made 67 and 67, and stood still for 0.07 s and 0.9 s. One that runs
counts no more.
"""

_TICK_MOST_MS: Final = 50

_all: Final[set[Life]] = set()
"""Those of all hosts of this process that are not gone: what they reserve is one machine's."""


def _explained(error: CreateFailed, ident: str) -> CreateFailed:
    """The same, with what the host lacks and what brings it, where that is known."""
    what, remedy = explain(str(error))
    if not remedy:
        return error
    return CreateFailed(f"sandbox {ident}: {what} ({remedy})", error.reason).with_traceback(error.__traceback__)


class Factory:
    """``lives`` are those that were begun here and are not gone."""

    def __init__(self, host: Host, runtime: Runtime) -> None:
        self.lives: set[Life] = set()
        self.starts = Starts(runtime.name)
        self._host = host
        self._runtime = runtime
        self._looked = False
        """One of its sandboxes was looked at."""
        self._own_directory: bool | None = None
        """What a handle of this runtime is; known from the first one on."""
        self._places: RunVar[anyio.Semaphore] = RunVar(f"proofbox makes {runtime.name}")

    async def make(
        self,
        order: Order,
        ident: str,
        held: float = 0.0,
        *,
        stack: Stack | None = None,
        below: Sequence[Below] = (),
        after: After | None = None,
    ) -> Life:
        """A live one, which whoever asked has to ``end``. Those before it in the queue are made first.

        With ``held`` its clocks stand until ``begin``, which must come within so many seconds. ``stack`` is what lies
        between it and its template, ``below`` the same for the runtime; ``after`` what it goes on from. Raises
        ``InvalidInput`` (the id), ``Busy``, ``Refused``, ``CreateFailed`` (``UncleanStart`` where it is not what others
        of its kind were), also where it is kept apart less than its level promises; then, and when cancelled, nothing
        is left.
        """
        check_id(ident)
        if any(life.spec.id == ident for life in self.lives):
            raise InvalidInput(f"sandbox id {ident!r} is in use by a live sandbox of this process")
        self._reserve(order.spec.limits)
        spec = msgspec.structs.replace(order.spec, id=ident)
        if order.seed != "":
            machine, boot = new_identity() if order.seed is None else identity_of(order.seed)
            spec = msgspec.structs.replace(spec, machine_id=machine, boot_id=boot)
        told = after is None and self._told(order)  # what has run is unlike a start
        life = Life(
            self._runtime,
            spec,
            order.template,
            held=held,
            on_ended=self._forget,
            stack=stack,
            below=below,
            fingerprint=told,
            after=after,
        )
        self.lives.add(life)
        _all.add(life)
        try:
            with paused():  # who is timed does not pay for the making of it
                async with self._turn():
                    if told and order.verify_start:
                        await _next_tick()
                    await life.open()
                if held or watching() or not self._looked:
                    check(life, self._host)
                    self._looked = True
                if told:
                    await self._verify(order, life, stack)
        except BaseException as error:
            await life.end()
            if type(error) is CreateFailed:
                registry.distrust(self._runtime.name)
                error = _explained(error, ident)
            raise error
        return life

    async def check(self, order: Order, life: Life, seconds: float, *, look: bool) -> None:
        """Whether one that was made before, and in which nothing has run, answers within so many seconds; with
        ``look`` also whether it is still what it was, where that can be told. Raises ``SandboxLost``
        (``UncleanStart``); whoever has it ends it then. Safe to cancel.
        """
        told = None
        question = life.channel.ask(look=look and bool(life.start_lines))
        with anyio.move_on_after(seconds):  # while the guest is at work
            told = await question.answer()
        if told is None:
            raise SandboxLost(f"sandbox {life.spec.id}: its guest did not answer within {seconds:.3g} s", "guest")
        if question.kind == LOOK and told != life.start_lines:
            self.starts.check(life.spec, told, order.template.layers)

    def hand_out(self, order: Order, life: Life) -> Sandbox:
        """As ``box``, for whom it was made: who watches is told of it."""
        tell(life)
        return self.box(order, life)

    def box(self, order: Order, life: Life) -> Sandbox:
        """A live one as its user sees it. Whoever hands it out later has to ``isolation.tell``."""
        if self._own_directory is None:
            self._own_directory = isinstance(life.handle, OwnDirectory)
        setting = order.setting()
        start = b"/"
        if self._own_directory:
            start = os.fsencode(cast(OwnDirectory, life.handle).cwd)
            setting.cwd = start if order.cwd is None else order.cwd
        setting.cwd = posixpath.normpath(posixpath.join(start, setting.cwd))
        return Sandbox(self._host, life, setting, Origin(self, order, life))

    async def _verify(self, order: Order, life: Life, stack: Stack | None) -> None:
        layers = order.template.layers
        self.starts.check(life.spec, life.start_lines, layers, stack)
        if order.verify_start:
            found = await self.box(order, life).fingerprint(full=True)
            self.starts.check_full(life.spec, found, layers, stack)

    def _told(self, order: Order) -> bool:
        """Its start can be compared with others': not where it shares the host's files or network, nor where another
        kernel than the host's tells what it is.
        """
        return self._runtime.level == "container" and order.spec.network == "none"

    def _turn(self) -> anyio.Semaphore:
        places = self._places.get(None)
        if places is None:
            places = anyio.Semaphore(AT_ONCE, fast_acquire=True)
            self._places.set(places)
        return places

    def _reserve(self, limits: Limits) -> None:
        """Raises ``Busy`` if the sandboxes of this process have reserved what this one is to have."""
        if limits.memory_reserve is None:
            return
        held = sum(life.spec.limits.memory_reserve or 0 for life in _all)
        room = available_memory()
        if held + limits.memory_reserve > room:
            raise Busy(
                f"memory_reserve={limits.memory_reserve}: {held} of {room} bytes are reserved by sandboxes that are "
                "open; close some, or reserve less"
            )

    def _forget(self, life: Life) -> None:
        self.lives.discard(life)
        _all.discard(life)


async def _next_tick() -> None:
    """Until files get another time than those that are there now: a file of the time of a sandbox's making is taken for
    the sandbox's own, and its template may have been made just now. Two ticks at most, of 4 or 10 ms.
    """
    now = time_ns()  # which the clock of files is behind, but not all files: some have the time to the nanosecond
    for _ in range(_TICK_MOST_MS):  # somebody may set the clock back meanwhile
        if clock_gettime_ns(COARSE) > now:
            return
        await anyio.sleep(0.001)
