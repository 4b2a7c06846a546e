"""The life of one sandbox: a table of states, each step with a deadline, and an end that always happens.

Whatever goes wrong at whatever line, ``end`` runs once, in a task of its own that no caller's cancellation reaches, and
the runtime removes what there is. A sandbox whose process dies is ended by the kernel and swept by the next reaper.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from time import clock_gettime_ns, perf_counter, time
from typing import Final, Literal, TypeVar, cast

import anyio

from proofbox.errors import CreateFailed, ProofboxError, ProtocolViolation, Refused, SandboxLost
from proofbox.kit.loop import Background, Stop, later
from proofbox.model.isolation import Isolation
from proofbox.model.limits import LimitKind
from proofbox.model.outcome import HitLimit, Usage
from proofbox.model.spec import LEVELS, SandboxSpec
from proofbox.model.template import Template, mountable
from proofbox.runtime.contract import (
    Below,
    CanCountEvents,
    CanLayer,
    CanObserve,
    CanSnapshotMemory,
    Ended,
    Handle,
    OwnKernels,
    Remembered,
    Runtime,
)
from proofbox.sandbox.channel import Channel
from proofbox.sandbox.clocks import start_clocks
from proofbox.sandbox.stack import Stack
from proofbox.wire.guest import HostHello

log = logging.getLogger("proofbox.sandbox")

State = Literal["new", "creating", "starting", "connecting", "live", "freezing", "frozen", "ending", "ended"]

MOVES: Final[dict[State, frozenset[State]]] = {
    "new": frozenset({"creating", "ending"}),
    "creating": frozenset({"starting", "ending"}),
    "starting": frozenset({"connecting", "ending"}),
    "connecting": frozenset({"live", "ending"}),
    "live": frozenset({"freezing", "ending"}),
    "freezing": frozenset({"frozen", "ending"}),
    "frozen": frozenset({"ending"}),
    "ending": frozenset({"ended"}),
    "ended": frozenset(),
}
"""Every state leads to the end, and nothing leads back: no sandbox is ever used twice."""

OVER: Final[frozenset[State]] = frozenset({"ending", "ended"})

CREATE_SECONDS: Final = 60.0
START_SECONDS: Final = 30.0
HELLO_SECONDS: Final = 30.0
EXPLAIN_SECONDS: Final = 2.0
"""How long the runtime may take to tell how a sandbox ended whose channel broke."""
DESTROY_SECONDS: Final = 30.0
DESTROY_PAUSES: Final = (0.05, 0.2, 1.0, 3.0, 0.0)
"""Seconds between tries: a cgroup is busy for a moment after its last process."""
LIFE_SLACK: Final = 5.0
"""Seconds after the wall limit at which the guest ends itself, should the host not have done it."""

COARSE: Final = 5
"""CLOCK_REALTIME_COARSE: the clock by which files get their times."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class After:
    """What a sandbox goes on from: another one with its processes, and the channel to that one's guest."""

    remembered: Remembered
    channel: Channel


class Life:
    """One sandbox from nothing to nothing. ``channel`` is there as long as it is live.

    With ``held`` it is made ahead: its clocks stand until ``begin``, which must come within so many seconds after
    ``open``. ``on_ended`` is called once, when it is gone. ``below`` is what the runtime needs to put it over
    ``stack``. With ``after`` it goes on where another one was. With ``fingerprint`` its guest tells, with its first
    word, what the sandbox is: ``start_lines``.
    """

    def __init__(
        self,
        runtime: Runtime,
        spec: SandboxSpec,
        template: Template,
        *,
        held: float = 0.0,
        on_ended: Callable[[Life], None] | None = None,
        stack: Stack | None = None,
        below: Sequence[Below] = (),
        fingerprint: bool = False,
        after: After | None = None,
    ) -> None:
        self.spec = spec
        self.stack = Stack() if stack is None else stack.hold()
        """What lies between it and its template; let go when it has ended."""
        self.asked_ns = 0
        """When its making began, as files have their times."""
        self.isolation: Isolation | None = None
        """How it is kept apart, if it was looked at when it was handed out: see ``sandbox.isolation``."""
        self.start_lines = b""
        """What the guest told of the sandbox before anything ran in it."""
        self._below = below
        self._after = after
        self._fingerprint = fingerprint
        self.state: State = "new"
        self.timings: dict[str, float] = {}
        self.handle: Handle | None = None
        self._runtime = runtime
        self._counting = cast(CanCountEvents, runtime) if _counts(type(runtime)) else None
        self._observing = cast(CanObserve, runtime) if _observes(type(runtime)) else None
        self.kernels = cast(OwnKernels, runtime) if _has_kernels(type(runtime)) else None
        """What finds the process that its kernel is, at a runtime where it may have one."""
        self._template = mountable(template)
        self._held = held
        self._on_ended = on_ended
        self._channel: Channel | None = None
        self._error: SandboxLost | None = None
        self._late: CreateFailed | None = None
        self._begun = 0.0
        self._gone = anyio.Event()
        self._stop_wall: Stop | None = None
        self._stop_clocks: Stop | None = None
        self._explaining: Background | None = None
        self._ending: Background | None = None

    @property
    def channel(self) -> Channel:
        """Raises ``SandboxLost`` with the reason if the sandbox is not live."""
        self._require_live()
        assert self._channel is not None
        return self._channel

    @property
    def frozen(self) -> bool:
        """All its processes are gone, and what it wrote is kept."""
        return self.state == "frozen"

    def _require_live(self) -> None:
        if self.state != "live":
            raise (
                copy.copy(self._error)
                if self._error
                else SandboxLost(f"sandbox {self.spec.id} is {self.state}, not live", "cancelled")
            )

    async def open(self) -> None:
        """Create, start, connect, greet. Raises ``CreateFailed``; then, and when cancelled, nothing of it is left."""
        self.asked_ns = clock_gettime_ns(COARSE)
        try:
            # One scope for all steps, whose deadline each sets anew: a scope costs as much as two system calls.
            with anyio.CancelScope() as scope:
                self.handle = await self._step(scope, "creating", "create", CREATE_SECONDS, self._create)
                await self._step(scope, "starting", "start", START_SECONDS, self._start)
                await self._step(scope, "connecting", "connect", HELLO_SECONDS, self._connect)
            if self._late:
                raise self._late
            self._move("live")
            if not self._held:
                self._watch_limits()
        except (CreateFailed, ProtocolViolation) as error:
            await self.end(error)
            raise
        except SandboxLost as error:
            await self.end(error)
            raise CreateFailed(str(error), error.reason) from error
        except OSError as error:
            await self.end(None)
            raise CreateFailed(f"sandbox {self.spec.id}: {self._runtime.name}: {error}", "host") from error
        except BaseException:
            await self.end(None)
            raise

    def begin(self) -> None:
        """Starts the clocks of one that was held: all of its limits on time are whole for whoever has it now. Once."""
        self._held = 0.0
        self._start_wall()
        self._watch_limits()

    async def end(self, error: SandboxLost | None = None) -> None:
        """Ends it and removes all of it; who waits gets ``error``. Idempotent; returns when it is gone, cancelled or
        not.
        """
        self._finish(error)
        if self._ending is None:
            return
        await self._ending.finish()

    async def freeze(self) -> None:
        """Ends all its processes and keeps what it wrote. See ``Sandbox.freeze``."""
        if self.frozen:
            return
        self._require_live()
        layering = self._layering()
        self._error = SandboxLost(f"sandbox {self.spec.id} is frozen: it runs nothing any more", "frozen")
        self._move("freezing")
        self._close(self._error)
        freezing = Background(lambda: self._stop(layering), f"proofbox freezes {self.spec.id}")
        await freezing.finish()
        if not self.frozen:
            raise copy.copy(self._error)

    async def _stop(self, layering: CanLayer) -> None:
        assert self.handle is not None
        try:
            await self._runtime.stop(self.handle)
            layering.layer(self.handle)
        except ProofboxError as error:
            self.lose(SandboxLost(f"sandbox {self.spec.id} could not be frozen, and was ended: {error}", "host"))
        else:
            if self.state == "freezing":  # else it was closed meanwhile
                self._move("frozen")

    def layering(self) -> tuple[CanLayer, Handle]:
        """What keeps the layer of a live or frozen one, and its handle. Raises ``Refused`` where nothing does."""
        if not self.frozen:
            self._require_live()
        return self._layering(), self._held_by_runtime()

    def _layering(self) -> CanLayer:
        if not _layers(type(self._runtime)):
            raise Refused(
                f"sandbox {self.spec.id}",
                (f"runtime {self._runtime.name!r} keeps no layer of what is written (native, crun, runc, runsc do)",),
            )
        return cast(CanLayer, self._runtime)

    @property
    def remembering(self) -> tuple[CanSnapshotMemory, Handle | None]:
        """What can carry its processes over, and its handle. Raises ``Refused`` where nothing can."""
        if not isinstance(self._runtime, CanSnapshotMemory):
            raise Refused(
                f"sandbox {self.spec.id} with its memory",
                (f"runtime {self._runtime.name!r} carries no processes over (microvm and runsc do): no memory=True",),
            )
        return self._runtime, self.handle

    def _held_by_runtime(self) -> Handle:
        if self.handle is None or self.state in OVER:
            raise copy.copy(self._error) if self._error else SandboxLost(f"sandbox {self.spec.id} is over", "cancelled")
        return self.handle

    async def wait(self) -> SandboxLost:
        """Waits until it is gone; the reason. Safe to cancel."""
        await self._gone.wait()
        return self._error or SandboxLost(f"sandbox {self.spec.id} is gone", "cancelled")

    def lose(self, error: SandboxLost) -> None:
        """Fails all who wait at once and ends the sandbox in the background. Idempotent, safe in a callback."""
        if self.state not in OVER:
            log.debug("sandbox %s: %s", self.spec.id, error)
            self._finish(error)

    def unanswered(self, what: str, seconds: float) -> SandboxLost:
        """The error for a guest that is silent long after a limit of its own."""
        silent = f"its guest is silent about the end of {what}, long after its limit of {seconds:g} s"
        return SandboxLost(f"sandbox {self.spec.id}: {silent}", "guest")

    async def usage(self) -> Usage:
        """The runtime's counters. Raises ``SandboxLost`` after the end, and if that is when its counters are lies."""
        try:
            return await self._runtime.usage(self._held_by_runtime())
        except ProtocolViolation as violation:
            self.lose(violation)
            raise

    async def counters(self) -> Usage:
        """As ``usage``, with the two counters that every command is measured by and whatever else comes with them."""
        if self._counting is not None and self.handle is not None and self.state == "live":
            oom_kills, process_denials = self._counting.events(self.handle)
            return Usage(oom_kills=oom_kills, process_denials=process_denials)
        return await self.usage()

    @property
    def counts_events(self) -> bool:
        """``counters`` are those of this sandbox alone, from 0, and cost almost nothing."""
        return self._counting is not None

    @property
    def shares_kernel(self) -> bool:
        """Its processes are the host's: what the guest calls one of them, the host can find."""
        return LEVELS.index(self._runtime.level) < LEVELS.index("user-kernel")

    def observe(self) -> tuple[Sequence[int], Usage] | None:
        """Its processes and counters as the host sees them; none if it is gone, None if its runtime cannot tell."""
        if self._observing is None:
            return None
        if self.handle is None or self.state != "live":
            return (), Usage()
        return self._observing.observe(self.handle)

    def age(self) -> float:
        """Seconds since its start, or since ``begin``; 0 before."""
        return perf_counter() - self._begun if self._begun else 0.0

    async def _step(
        self, scope: anyio.CancelScope, state: State, phase: str, seconds: float, work: Callable[[], Awaitable[T]]
    ) -> T:
        self._move(state)
        begun = perf_counter()
        scope.deadline = anyio.current_time() + seconds
        try:
            return await work()
        finally:
            self.timings[phase] = perf_counter() - begun
            if scope.cancel_called and self._late is None:
                message = f"sandbox {self.spec.id}: {self._runtime.name} was {state} for more than {seconds:g} s"
                self._late = CreateFailed(f"{message}; the host is overloaded, or `proofbox doctor` tells why", phase)

    async def _create(self) -> Handle:
        if self._after is not None:
            runtime, _ = self.remembering
            return await runtime.create_like(self.spec, self._template, self._after.remembered, self._below)
        if not self._below:
            return await self._runtime.create(self.spec, self._template)
        return await self._layering().create_above(self.spec, self._template, self._below)

    async def _start(self) -> None:
        assert self.handle is not None
        if not self._held:
            self._start_wall()
        await self._runtime.start(self.handle)

    def _start_wall(self) -> None:
        self._begun = perf_counter()
        if self.spec.limits.wall is not None:
            self._stop_wall = later(self.spec.limits.wall, self._wall_passed)

    def _watch_limits(self) -> None:
        if self.spec.limits.cpu_time is not None or self.spec.limits.idle is not None:
            self._stop_clocks = start_clocks(self)

    async def _connect(self) -> None:
        assert self.handle is not None
        sock = await self._runtime.connect(self.handle)
        if self._after is not None:
            self._channel = Channel(sock, self.spec.id, self._channel_lost, self._after.channel)
            await self._channel.ask().answer()  # it does go on
            return
        self._channel = Channel(sock, self.spec.id, self._channel_lost)
        wall = self.spec.limits.wall
        life_ms = int((self._held + wall + LIFE_SLACK) * 1000) if wall is not None else 0
        hello = await self._channel.hello(
            HostHello(
                life_ms=life_ms,
                unisolated=self._runtime.level == "none",
                fingerprint=self._fingerprint,
                ahead=self._held > 0,
            )
        )
        self.start_lines = hello.fingerprint

    def _wall_passed(self) -> None:
        limit = self.spec.limits.wall or 0.0
        hit = HitLimit(kind="wall", limit=limit, used=self.age(), elapsed=self.age(), at=time())
        text = f"sandbox {self.spec.id} reached its wall limit of {limit:g} s and was ended"
        self.lose(SandboxLost(text, "wall", hit))

    def _channel_lost(self, violation: ProtocolViolation | None) -> None:
        if violation is not None:
            self.lose(violation)
        else:
            self._explaining = Background(self._explain, f"proofbox explain {self.spec.id}")

    async def _explain(self) -> None:
        """The channel has ended: asks the runtime why, so that whoever waits gets the reason and not the symptom."""
        ended: Ended | None = None
        if self.handle is not None and self.state in ("connecting", "live"):
            try:
                with anyio.move_on_after(EXPLAIN_SECONDS):
                    ended = await self._runtime.wait(self.handle)
            except SandboxLost as error:  # a lie among its last words
                self.lose(error)
                return
        fatal = self._channel.fatal if self._channel is not None else ""
        where = f"sandbox {self.spec.id}"
        wall = self.spec.limits.wall
        if self.state == "connecting":
            told, step = fatal or _status(ended), fatal.partition(":")[0] or "guest"
            if ended is not None and ended.oom:
                told, step = (
                    f"its limit memory={self.spec.limits.memory} is too little to begin with ({told})",
                    "memory",
                )
            self.lose(CreateFailed(f"{where} did not come up: {told}", step))
        elif ended is not None and ended.oom:
            limit = self.spec.limits.memory
            text = f"{where} was ended by the kernel: out of memory (limit {limit} bytes)"
            self.lose(SandboxLost(text, "memory", self._hit("memory", limit)))
        elif ended is not None and ended.crowded:
            limit = self.spec.limits.processes
            text = f"{where} ended: it went on to start processes far beyond its limit of {limit}"
            self.lose(SandboxLost(text, "processes", self._hit("processes", limit)))
        elif wall is not None and self.age() >= wall:
            self._wall_passed()
        else:
            self.lose(SandboxLost(f"{where} is gone: {fatal or _status(ended)}", "guest"))

    def _hit(self, kind: LimitKind, limit: int | None) -> HitLimit:
        """What ended the sandbox, and was its own doing."""
        return HitLimit(kind=kind, limit=float(limit or 0), used=None, elapsed=self.age(), cause="task", at=time())

    def _finish(self, error: SandboxLost | None) -> None:
        if self.state in OVER:
            return
        self._error = error or SandboxLost(f"sandbox {self.spec.id} was closed", "cancelled")
        self._move("ending")
        self._close(self._error)
        if self.handle is None:
            self._move("ended")
        else:
            self._ending = Background(self._destroy, f"proofbox end of {self.spec.id}")

    def _close(self, error: SandboxLost) -> None:
        """Nothing is asked of it any more, and nothing counts."""
        if self._stop_wall is not None:
            self._stop_wall()
        if self._stop_clocks is not None:
            self._stop_clocks()
        if self._channel is not None:
            self._channel.fail(error)

    async def _destroy(self) -> None:
        assert self.handle is not None
        assert self._ending is not None
        begun = perf_counter()
        where = f"sandbox {self.spec.id}: runtime {self._runtime.name}"
        removed = False
        stop = later(DESTROY_SECONDS, self._ending.cancel)
        try:
            for pause in DESTROY_PAUSES:
                try:
                    await self._runtime.destroy(self.handle)
                    removed = True
                    return
                except (ProofboxError, OSError) as error:
                    log.warning("%s could not remove all of it, and tries again: %s", where, error)
                    await anyio.sleep(pause)
        finally:
            stop()
            self.timings["destroy"] = perf_counter() - begun
            if not removed:
                taken = self.timings["destroy"]
                log.error("%s did not remove it in %.1f s; what is left is swept after this process", where, taken)
            self._move("ended")

    def _move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise (
                copy.copy(self._error)
                if self._error
                else SandboxLost(f"sandbox {self.spec.id} cannot go from {self.state} to {state}", "host")
            )
        self.state = state
        if state == "ended":
            self.stack.release()
            self._gone.set()
            if self._on_ended is not None:
                self._on_ended(self)


@cache
def _counts(runtime: type[Runtime]) -> bool:
    """Asked once for each kind: a check against a Protocol takes as long as a system call."""
    return issubclass(runtime, CanCountEvents)


@cache
def _layers(runtime: type[Runtime]) -> bool:
    return issubclass(runtime, CanLayer)


@cache
def _has_kernels(runtime: type[Runtime]) -> bool:
    return issubclass(runtime, OwnKernels)


@cache
def _observes(runtime: type[Runtime]) -> bool:
    return issubclass(runtime, CanObserve)


def _status(ended: Ended | None) -> str:
    if ended is None:
        return "its channel broke, and its runtime does not tell why"
    if ended.status is None:
        return "its guest ended"
    if ended.status & 0x7F:
        return f"its guest was ended by signal {ended.status & 0x7F}"
    return f"its guest exited with {ended.status >> 8}"
