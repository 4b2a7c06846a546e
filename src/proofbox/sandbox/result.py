"""What a command came to: its outcome, its output, what it used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Literal

from proofbox.errors import Busy, InvalidInput, OperationFailed, ProofboxError
from proofbox.model.limits import Limits
from proofbox.model.outcome import Exited, HitLimit, Killed, Lost, Outcome, Signaled, Usage, memory_hit
from proofbox.sandbox.setting import Setting
from proofbox.sandbox.stream import Stream
from proofbox.wire import frames, guest


@dataclass(frozen=True, slots=True)
class CommandUsage:
    """Seconds and bytes. The first three are the guest's word about the command's own tree; the others are the
    kernel's.

    ``oom_kills`` and ``process_denials`` count what happened in the sandbox while the command ran, by whatever process;
    None where the host has no such counter.
    """

    cpu_user: float = 0.0
    cpu_system: float = 0.0
    max_rss: int = 0
    oom_kills: int | None = None
    process_denials: int | None = None


@dataclass(frozen=True)
class CommandResult:
    """One command that has ended.

    ``stdout_bytes`` and ``stderr_bytes`` are the first ``keep`` bytes of each, byte for byte; ``stdout_total`` and
    ``stderr_total`` are how many there were. ``elapsed``: seconds by the guest's clock, and never more than were waited
    for it. ``left_running``: processes of the command that go on in the background
    (None if the guest could not tell); ``held_open``: one of them still holds stdout or stderr.
    """

    outcome: Outcome
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_total: int
    stderr_total: int
    elapsed: float
    usage: CommandUsage
    left_running: int | None = 0
    held_open: bool = False

    @cached_property
    def stdout(self) -> str:
        """As UTF-8; what is not becomes U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @cached_property
    def stderr(self) -> str:
        """As ``stdout``."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """There was more output than was kept; the head was kept."""
        return self.stdout_total > len(self.stdout_bytes) or self.stderr_total > len(self.stderr_bytes)

    @property
    def ok(self) -> bool:
        """It exited with 0."""
        return isinstance(self.outcome, Exited) and self.outcome.code == 0

    @property
    def returncode(self) -> int | None:
        """As a shell tells it: the exit code, 128 + the signal; None if a limit or a kill ended it, or the sandbox
        was lost.
        """
        if isinstance(self.outcome, Exited):
            return self.outcome.code
        if isinstance(self.outcome, Signaled):
            return 128 + self.outcome.signal
        return None


def result_of(stream: Stream, setting: Setting, before: Usage | None, after: Usage | None) -> CommandResult:
    """The result of a command whose END has come. ``before`` and ``after`` are the sandbox's counters around it."""
    end = stream.end
    assert end is not None
    usage = CommandUsage(
        end.cpu_us[0] / 1e6,
        end.cpu_us[1] / 1e6,
        end.max_rss,
        _grown(before, after, "oom_kills"),
        _grown(before, after, "process_denials"),
    )
    # The threat: a guest that was taken over says any time; nothing can have taken longer than we waited for it.
    elapsed = min(end.elapsed_us / 1e6, perf_counter() - stream.begun)
    outcome = _outcome(stream, end, setting.limits, elapsed)
    if usage.oom_kills and outcome in setting.killed:
        peak = after.memory_peak if after is not None else None
        outcome = memory_hit(setting.limits.memory, peak, elapsed)
    stderr = stream.incoming.get(frames.STDERR)
    return CommandResult(
        outcome=outcome,
        stdout_bytes=_kept(stream, frames.STDOUT),
        stderr_bytes=_kept(stream, frames.STDERR),
        stdout_total=end.produced[0],
        stderr_total=end.produced[1] if stderr is not None else 0,
        elapsed=elapsed,
        usage=usage,
        left_running=end.left,
        held_open=bool(end.held & 0b110),
    )


def cut_short(stream: Stream, outcome: Outcome, elapsed: float) -> CommandResult:
    """The result of a command whose sandbox was ended under it: what had come until then."""
    totals = {pipe: incoming.total for pipe, incoming in stream.incoming.items()}
    return CommandResult(
        outcome=outcome,
        stdout_bytes=_kept(stream, frames.STDOUT),
        stderr_bytes=_kept(stream, frames.STDERR),
        stdout_total=totals.get(frames.STDOUT, 0),
        stderr_total=totals.get(frames.STDERR, 0),
        elapsed=elapsed,
        usage=CommandUsage(),
        left_running=0,
    )


def refusal(refused: guest.Refused, what: str, run: guest.Run | None = None) -> ProofboxError:
    """The error for what the guest did not start; it names the user or the directory that ``run`` asked for."""
    step = refused.step[:40].decode("utf-8", "backslashreplace")
    said = refused.message[:400].decode("utf-8", "backslashreplace")
    if step == "limit":
        return Busy(f"{what}: the sandbox runs as many operations at once as a guest serves: {said}")
    if step == "field":
        return InvalidInput(f"{what}: {said}")
    subject = {"user": run.user, "cwd": run.cwd}.get(step) if run is not None else None
    named = "" if subject is None else f" {subject.decode('utf-8', 'backslashreplace')!r}"
    return OperationFailed(f"{what} did not start: {step}{named}: {said}", step, refused.errno)


def _outcome(stream: Stream, end: guest.End, limits: Limits, elapsed: float) -> Outcome:
    late = end.how <= guest.SIGNALED and 0 < stream.deadline <= elapsed
    if end.how == guest.DEADLINE or late:
        # ``late``: it ended by itself, but after its time, before the guest's own timer was served.
        confirmed = late or end.gone
        return HitLimit(kind="command_wall", limit=stream.deadline, used=elapsed, elapsed=elapsed, confirmed=confirmed)
    if end.how == guest.EXITED:
        return Exited(end.code)
    if end.how == guest.SIGNALED:
        return Signaled(end.code)
    if end.how == guest.OUTPUT_LIMIT:
        total = end.produced[0] + end.produced[1]
        limit = float(limits.output or stream.output_limit)
        return HitLimit(kind="output", limit=limit, used=total, elapsed=elapsed, cause="task", confirmed=end.gone)
    if end.how == guest.KILLED:
        return Killed(confirmed=end.gone)
    return Lost("guest", "its supervisor was killed from inside; its whole tree was ended")


def _kept(stream: Stream, pipe: int) -> bytes:
    incoming = stream.incoming.get(pipe)
    return bytes(incoming.buffer) if incoming is not None and incoming.keep is not None else b""


def _grown(before: Usage | None, after: Usage | None, counter: Literal["oom_kills", "process_denials"]) -> int | None:
    first = getattr(before, counter, None)
    last = getattr(after, counter, None)
    return None if first is None or last is None else max(0, last - first)
