"""Commands: run one and wait for it, or start one and talk to it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter, time
from typing import Any, Final, Literal

import anyio
import msgspec

from proofbox.errors import InvalidInput, ProofboxError, Refused, SandboxLost
from proofbox.kit.loop import Stop, later
from proofbox.model.blame import cause_of
from proofbox.model.outcome import Exited, HitLimit, Lost, Outcome, Signaled, Usage
from proofbox.sandbox.channel import READ_SIZE, Channel
from proofbox.sandbox.connection import Connection
from proofbox.sandbox.cpu_time import CpuTime
from proofbox.sandbox.given import as_args, as_count, as_data, as_seconds
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.observe import Watch
from proofbox.sandbox.ops import Ops
from proofbox.sandbox.result import CommandResult, cut_short, refusal, result_of
from proofbox.sandbox.setting import Setting
from proofbox.sandbox.stream import Stream
from proofbox.wire import frames, guest

DEFAULT_KEEP: Final = 10 << 20
DRAIN_MS: Final = 100
ANSWER_SECONDS: Final = 15.0
"""How long after a command's own deadline the guest may take to tell: the transport is always more patient than the
limit.
"""
KILL_SECONDS: Final = 8.0
MESSAGE_MOST: Final = 16 << 20
ENDED_BY_CPU_TIME: Final = (Signaled(signal.SIGXCPU), Exited(128 + signal.SIGXCPU))
"""What the kernel's limit on the CPU time of one process looks like; a program can look like that by itself."""
REMEMBERED: Final = 256
"""Ended commands that are still listed by id."""

Scope = Literal["process", "group", "tree"]
SCOPES: Final[dict[Scope, int]] = {
    "process": guest.SCOPE_PROCESS,
    "group": guest.SCOPE_GROUP,
    "tree": guest.SCOPE_TREE,
}


@dataclass(frozen=True, slots=True)
class Clocks:
    """All that is timed of one command: our patience with its guest, the looks at it, its CPU time."""

    stream: Stream
    patience: Stop
    watch: Watch | None
    cpu: CpuTime | None

    def stop(self) -> None:
        """It has ended. Idempotent."""
        self.patience()
        if self.watch is not None:
            self.watch.stop()
        if self.cpu is not None:
            self.cpu.stop()


class Commands:
    """The commands of one sandbox."""

    def __init__(self, life: Life, setting: Setting) -> None:
        self.life = life
        self._setting = setting
        self._ops = Ops()
        self._started: dict[int, Command] = {}
        self._counted = True
        self._quiet: Usage | None = Usage(oom_kills=0, process_denials=0) if life.counts_events else None
        """The counters when the last command ended and nothing was left that could move them; first those of a sandbox
        in which nothing has run yet.
        """
        self._alone = True

    async def run(
        self, command: str | Sequence[str | bytes], stdin: bytes | str | None, op: str | None, asked: dict[str, Any]
    ) -> CommandResult:
        """See ``Sandbox.run``."""
        data = None if stdin is None else as_data(stdin, "stdin")
        # Its pid tells it from its neighbours, should it reach a limit; alone it has none. A repetition must be equal.
        cpu = self._cpu_limit(asked)
        quiet = op is None and cpu is None and not self.life.channel.busy
        run = self.prepare(command, stdin=data is not None, quiet=quiet, **asked)
        if op is None:
            return await self._run(run, data, cpu)
        return await self._ops.once(op, (run, data, cpu), lambda: self._run(run, data, cpu))

    async def start(self, command: str | Sequence[str | bytes], stdin: bool, asked: dict[str, Any]) -> Command:
        """See ``Sandbox.start``."""
        cpu = self._cpu_limit(asked)
        run = self.prepare(command, stdin=stdin, **asked)
        channel = self.life.channel
        await channel.room()
        self._alone = False
        before = await self.counters()
        clocks = self._clocks(channel, run, cpu)
        stream = clocks.stream
        try:
            while stream.pid is None and not stream.over:
                await stream.change()
        except BaseException:
            clocks.stop()
            await self.end(channel, stream)
            raise
        if stream.refused is not None or stream.error is not None:
            clocks.stop()
            await self.settle(clocks, before, run)
        started = self._started[stream.id] = Command(self, channel, clocks, before)
        for old in [each for each in self._started.values() if each.over][:-REMEMBERED]:
            del self._started[old.id]
        return started

    def all(self) -> list[Command]:
        """Those that were started here, running ones and the latest that have ended."""
        return list(self._started.values())

    def prepare(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
        cpu_time: float | None = None,
        grace: float = 0.0,
        keep: int | None = DEFAULT_KEEP,
        merge: bool = False,
        pty: tuple[int, int] | None = None,
        channel: bool = False,
        quiet: bool = False,
    ) -> guest.Run:
        """The message for these arguments. Raises ``InvalidInput`` and ``Refused``."""
        shell, args = as_args(command)
        setting = self._setting
        limits = setting.limits
        wall = limits.command_wall if timeout is None else as_seconds(timeout, "timeout")
        run = guest.Run(
            kind=guest.SHELL if shell else guest.ARGV,
            args=args,
            env=setting.env_with(env),
            cwd=setting.cwd_with(cwd),
            user=setting.user_with(user),
            stdin=stdin,
            pty=None if pty is None else (as_count(pty[0], "rows", 65535, 1), as_count(pty[1], "columns", 65535, 1)),
            deadline_ms=0 if wall is None else max(1, round(wall * 1000)),
            grace_ms=round(as_seconds(grace, "grace", zero=True) * 1000) if grace else 0,
            keep=None if keep is None else as_count(keep, "keep"),
            channel=channel,
            drain_ms=DRAIN_MS,
            output_limit=limits.output or 0,
            rlimits=setting.rlimits_with(limits.command_cpu_time if cpu_time is None else cpu_time),
            merge=merge,
            quiet=quiet,
        )
        size = sum(map(len, args)) + sum(map(len, run.env)) + 5 * (len(args) + len(run.env)) + 16_384
        if size > MESSAGE_MOST:
            raise InvalidInput(f"the command and its environment have {size} bytes; at most {MESSAGE_MOST} can be sent")
        return run

    async def counters(self) -> Usage | None:
        """The sandbox's counters, None where there are none. Not read again where nothing ran since the last
        reading.
        """
        if not self._counted:
            return None
        if self._quiet is not None and not self.life.channel.busy:
            return self._quiet
        usage = await self.life.counters()
        self._counted = usage.oom_kills is not None or usage.process_denials is not None
        return usage if self._counted else None

    async def settle(self, clocks: Clocks, before: Usage | None, run: guest.Run | None = None) -> CommandResult:
        """The result of an operation that is over. Raises ``SandboxLost``, ``OperationFailed``, ``Busy``."""
        stream, watch = clocks.stream, clocks.watch
        if stream.error is not None:
            return await self._cut_short(stream, stream.error, watch)
        if stream.refused is not None:
            raise refusal(stream.refused, f"command {stream.id} in sandbox {self.life.spec.id}", run)
        self._quiet = None
        after = None
        if before is not None:
            try:
                after = await self.counters()
                if after is not None and before.oom_kills != after.oom_kills:
                    after = await self.life.usage()  # the peak is evidence now
            except ProofboxError:  # ended since: the command's own result stands
                after = None
        result = result_of(stream, self._setting, before, after)
        if clocks.cpu is not None or result.outcome in ENDED_BY_CPU_TIME:
            result = replace(result, outcome=await self._cpu_time(result, clocks.cpu))
        if isinstance(result.outcome, HitLimit):
            result = replace(result, outcome=await self._blamed(result.outcome, stream, watch))
        if result.left_running != 0:
            self._alone = False
        if self._alone:
            self._quiet = after
        if getattr(result.outcome, "confirmed", True) is False:
            self.life.lose(
                SandboxLost(
                    f"sandbox {self.life.spec.id}: processes of command {stream.id} did not end when they were killed",
                    "guest",
                )
            )
        return result

    async def end(self, channel: Channel, stream: Stream) -> None:
        """Kills a command whose caller was cancelled, and waits until it is gone; else the sandbox is ended."""
        gone = False
        try:
            with anyio.move_on_after(KILL_SECONDS, shield=True):
                if not stream.over:
                    channel.kill(stream)
                    await stream.done.wait()
                gone = stream.end is None or stream.end.gone or stream.end.how <= guest.SIGNALED
        finally:
            if not gone:
                message = f"command {stream.id} was cancelled and could not be ended, so its sandbox was"
                self.life.lose(SandboxLost(f"sandbox {self.life.spec.id}: {message}", "cancelled"))

    async def _run(self, run: guest.Run, data: bytes | None, cpu: float | None) -> CommandResult:
        channel = self.life.channel
        await channel.room()
        before = await self.counters()
        clocks = self._clocks(channel, run, cpu)
        stream = clocks.stream
        try:
            if data is not None:
                await channel.send(stream, frames.STDIN, data, eof=True)
            if not stream.over:
                await stream.done.wait()
        except SandboxLost:
            await stream.done.wait()
        except BaseException:
            await self.end(channel, stream)
            raise
        finally:
            clocks.stop()
        return await self.settle(clocks, before, run)

    def _clocks(self, channel: Channel, run: guest.Run, cpu: float | None) -> Clocks:
        """Starts the command, and all that is timed of it."""
        counted = None if cpu is None else CpuTime(self.life, cpu)
        stream = channel.run(run, run.keep)
        if counted is not None:
            counted.begin(lambda: stream.pid, lambda: channel.kill(stream))
        return Clocks(stream, self._patience(stream, run), self.watch(stream), counted)

    def _cpu_limit(self, asked: Mapping[str, Any]) -> float | None:
        """CPU seconds for one command. Raises ``Refused`` where nobody counts them."""
        own = asked.get("cpu_time")
        if own is None:
            return self._setting.limits.command_cpu_time
        if not self._setting.counts_cpu:
            raise Refused(f"cpu_time={own} for a command", ("this runtime does not count CPU time here",))
        return as_seconds(own, "cpu_time")

    def watch(self, stream: Stream) -> Watch | None:
        """Watches a command until its own deadline, or its sandbox's; None if it has neither."""
        wall = self._setting.limits.wall
        limit = min(stream.deadline or inf, inf if wall is None else wall - self.life.age())
        return Watch(self.life, limit, lambda: stream.pid) if 0 < limit < inf else None

    async def _cut_short(self, stream: Stream, error: SandboxLost, watch: Watch | None) -> CommandResult:
        """The result of a command whose sandbox was ended by a limit of its own; else the loss is raised."""
        elapsed = perf_counter() - stream.begun
        if error.reason == "wall":
            limit = self._setting.limits.wall or 0.0
            hit = HitLimit(kind="wall", limit=limit, used=self.life.age(), elapsed=elapsed)
        elif error.reason == "cpu_time" and isinstance(error.limit, HitLimit):
            hit = msgspec.structs.replace(error.limit, elapsed=elapsed)
        else:
            raise stream.lost()
        return cut_short(stream, await self._blamed(hit, stream, watch), elapsed)

    async def _cpu_time(self, result: CommandResult, own: CpuTime | None) -> Outcome:
        """The limit on CPU time that a command ended by, else its outcome. The counters say so, and never a signal."""
        outcome, elapsed = result.outcome, result.elapsed
        if own is not None and own.hit is not None and not isinstance(outcome, HitLimit | Lost):
            confirmed = getattr(outcome, "confirmed", True)
            return msgspec.structs.replace(own.hit, elapsed=elapsed, confirmed=confirmed)
        if outcome not in ENDED_BY_CPU_TIME:
            return outcome
        limit = self._setting.limits.cpu_time
        try:
            usage = await self.life.usage() if limit is not None else Usage()
        except ProofboxError:
            return outcome
        used = (usage.cpu_user or 0.0) + (usage.cpu_system or 0.0)
        if limit is not None and used >= limit:
            return HitLimit(kind="cpu_time", limit=limit, used=used, elapsed=elapsed, cause="task")
        said = result.usage.cpu_user + result.usage.cpu_system
        if own is not None and (proven := own.proves(said)) is not None:
            return HitLimit(kind="command_cpu_time", limit=own.limit, used=proven, elapsed=elapsed, cause="task")
        return outcome

    async def _blamed(self, hit: HitLimit, stream: Stream, watch: Watch | None) -> HitLimit:
        """The limit with all that is known of it: when, which command, and for those on time whose doing it was."""
        hit = msgspec.structs.replace(hit, at=time(), command=stream.id)
        if hit.kind not in ("command_wall", "wall") or watch is None:
            return hit
        try:
            usage = await self.life.usage()
        except ProofboxError:  # gone with its counters; the looks until then stand
            usage = None
        evidence = watch.evidence(hit.elapsed, usage)
        return msgspec.structs.replace(hit, cause=cause_of(evidence), evidence=evidence)

    def _patience(self, stream: Stream, run: guest.Run) -> Stop:
        """Gives the sandbox up if the guest does not tell of the end of a command long after its deadline."""
        if not run.deadline_ms:
            return _nothing
        seconds = (run.deadline_ms + run.grace_ms + run.drain_ms) / 1000 + ANSWER_SECONDS

        def give_up() -> None:
            if not stream.over:
                self.life.lose(self.life.unanswered(f"command {stream.id}", run.deadline_ms / 1000))

        return later(seconds, give_up)


class Command:
    """One command that was started. Its output is kept up to ``keep``, whether somebody reads it or not.

    It runs until it ends, is killed, or its sandbox goes; nobody has to wait for it.
    """

    def __init__(
        self,
        commands: Commands,
        channel: Channel,
        clocks: Clocks,
        before: Usage | None,
    ) -> None:
        self._commands = commands
        self._channel = channel
        self._clocks = clocks
        self._stream = stream = clocks.stream
        self._before = before
        self._settling = anyio.Lock()
        self._result: CommandResult | None = None
        self.id = stream.id
        self.pid = stream.pid or 0

    @property
    def over(self) -> bool:
        """It has ended, or its sandbox has."""
        return self._stream.over

    @property
    def channel(self) -> Connection:
        """Descriptor 3 of the command. Only where ``start`` was told ``channel=True``."""
        if frames.CHANNEL not in self._stream.incoming:
            raise InvalidInput(f"command {self.id} was started without a channel; say start(..., channel=True)")
        return Connection(self._channel, self._stream, own=False)

    async def send(self, data: bytes | str) -> bool:
        """Sends to its stdin; False if it ended before it had read all. Raises ``InvalidInput`` if there is no
        stdin.
        """
        return await self._channel.send(self._stream, frames.STDIN, as_data(data, "stdin"))

    async def send_eof(self) -> None:
        """Closes its stdin. Idempotent."""
        if self._stream.takes(frames.STDIN):
            await self._channel.send(self._stream, frames.STDIN, b"", eof=True)

    async def signal(self, number: int, scope: Scope = "process") -> None:
        """Sends a signal; nothing happens if it has ended. Raises ``SandboxLost``."""
        if scope not in SCOPES:
            raise InvalidInput(f"scope {scope!r} is none of {', '.join(SCOPES)}")
        payload = guest.encode_signal(as_count(number, "signal", 64, 1), SCOPES[scope])
        self._channel.tell(self._stream, frames.SIGNAL, payload)

    async def resize(self, rows: int, cols: int) -> None:
        """Tells its terminal the new size."""
        payload = guest.encode_resize(as_count(rows, "rows", 65535, 1), as_count(cols, "columns", 65535, 1))
        self._channel.tell(self._stream, frames.RESIZE, payload)

    async def kill(self) -> CommandResult:
        """Ends its whole tree, with SIGKILL, and waits until it is gone; if that fails the sandbox is ended."""
        self._channel.kill(self._stream)
        with anyio.move_on_after(KILL_SECONDS):
            return await self.wait()
        await self._commands.end(self._channel, self._stream)
        return await self.wait()

    async def wait(self) -> CommandResult:
        """Its result. Safe to repeat, and to cancel: it goes on. Raises ``SandboxLost``."""
        await self._stream.done.wait()
        self._clocks.stop()
        async with self._settling:
            if self._result is None:
                self._result = await self._commands.settle(self._clocks, self._before)
            return self._result

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(1 or 2, bytes) as they come, from the first byte on, until both have ended. Raises ``SandboxLost``.

        With ``keep=None`` nothing is kept: the command waits for this reader, and there may be only one.
        """
        stream = self._stream
        at = dict.fromkeys([pipe for pipe in stream.incoming if pipe != frames.CHANNEL], 0)
        while True:
            over = stream.over
            some = False
            for pipe in at:
                data = self._next(pipe, at)
                if data:
                    some = True
                    yield pipe, data
            if some:
                continue
            if over:
                if stream.error is not None:
                    raise stream.lost()
                return
            if all(stream.incoming[pipe].eof for pipe in at):
                return
            await stream.change()

    def _next(self, pipe: int, at: dict[int, int]) -> bytes:
        incoming = self._stream.incoming[pipe]
        if incoming.keep is None:
            return self._channel.read(self._stream, pipe)
        data = bytes(incoming.buffer[at[pipe] : at[pipe] + READ_SIZE])
        at[pipe] += len(data)
        return data


def watch(command: Command, limit: float, counts: Callable[[], bool], on_look: Callable[[], None]) -> Watch:
    """Watches a command for a clock of the caller's own, of ``limit`` seconds, that runs while ``counts`` says so.

    Instead of for its own deadline. ``on_look`` is called after each look. Stop it when the clock has stopped. For what
    runs in the event loop of the sandbox only: the verifier.
    """
    clocks = command._clocks
    if clocks.watch is not None:
        clocks.watch.stop()
    watch = Watch(command._commands.life, limit, lambda: command._stream.pid, counts, on_look)
    command._clocks = replace(clocks, watch=watch)
    return watch


def _nothing() -> None:
    """There is no timer to stop."""
