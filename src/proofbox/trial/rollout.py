"""An agent that acts in a sandbox: it is made and set up, decisions are carried out, one file is handed over.

Everything in the sandbox is hostile. The agent runs outside; between the two only what ``model.turn`` names travels.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from proofbox.agent.contract import TurnAgent
from proofbox.errors import AgentFailed, BrokenTask, FileFailed, InvalidInput, OperationFailed, SetupFailed
from proofbox.kit.clock import Clock, paused
from proofbox.model.limits import Limits
from proofbox.model.outcome import HitLimit
from proofbox.model.task import Candidate, Task, Workspace
from proofbox.model.trace import recordable
from proofbox.model.turn import Decision, Ran, Turn
from proofbox.model.verdict import Verdict
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.sandbox.result import CommandResult
from proofbox.trial.clocks import Clocks, Decided, out_of_time

KEEP: Final = 64 << 10
"""Bytes of each output of a command that the agent is shown, and the trace keeps."""
ANSWER_MOST: Final = 4 << 20
"""Bytes of an answer."""

Tell = Callable[[Turn], Awaitable[None]]
"""Records a turn; returns when that is done."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where agents that act get their sandboxes; ``limits`` where the task is silent."""

    host: Host
    limits: Limits = field(default_factory=Limits)


async def act_in_sandbox(
    task: Task, index: int, agent: TurnAgent, place: Workplace, clocks: Clocks, tell: Tell
) -> Candidate:
    """What the agent has left in a new sandbox, which is gone afterwards, however this ends.

    Raises ``Decided`` where it left nothing that can be judged, ``SetupFailed``, ``AgentFailed``, ``SandboxLost``.
    """
    work = task.workspace
    if work is None:
        raise BrokenTask(f"task {task.id} has no workspace: no agent can act in a sandbox for it")
    limits = task.limits.over(place.limits)
    async with place.host.open_sandbox(task.template, limits=limits, network=task.network, cwd=work.cwd) as box:
        clocks.timings["sandbox"] = sum(box.timings.values())
        with clocks.phase("setup"):
            await _set_up(box, task.id, work)
        with clocks.phase("agent"):
            await _play(box, task, index, agent, tell)
        await box.kill_all()  # nothing changes the answer any more
        return await _answer(box, work.answer)


async def _set_up(box: Sandbox, task: str, work: Workspace) -> None:
    for path, text in work.files.items():
        try:
            await box.write(path, text)
        except OperationFailed as error:
            raise SetupFailed(f"task {task}, setup, file {path!r}: {error}") from error
    for number, command in enumerate(work.setup, 1):
        try:
            result = await box.run(command, keep=KEEP)
        except OperationFailed as error:
            raise SetupFailed(f"task {task}, setup, command {number}: {error}") from error
        if not result.ok:
            limit = result.outcome if isinstance(result.outcome, HitLimit) else None
            ended = recordable(result.stderr[-500:] or result.stdout[-500:])
            raise SetupFailed(f"task {task}, setup, command {number}: {result.outcome}; it ended with {ended!r}", limit)


async def _play(box: Sandbox, task: Task, index: int, agent: TurnAgent, tell: Tell) -> None:
    turns: list[Turn] = []
    while (turn := await _turn(box, task, index, agent, turns, tell)) is not None:
        turns.append(turn)
        await anyio.lowlevel.checkpoint()  # an agent that decides nothing, for ever, holds nobody up


async def _turn(
    box: Sandbox, task: Task, index: int, agent: TurnAgent, turns: Sequence[Turn], tell: Tell
) -> Turn | None:
    """One turn, recorded before the agent can see it; None if it is done."""
    wall = task.walls.turn_wall
    clock = Clock() if wall is None else Clock(wall)
    with clock.run():
        decision = await agent.decide(task, index, tuple(turns))
    if clock.expired:
        limit = HitLimit(kind="turn_wall", limit=wall or 0.0, used=clock.used, elapsed=clock.used, at=time.time())
        raise out_of_time(limit)
    if decision is None:
        return None
    if not isinstance(decision, Decision):
        raise AgentFailed(f"the agent decided {type(decision).__name__}, neither a Decision nor None")
    acting = _Acting(box, decision, wall, clock.used)
    cut = True
    try:
        await acting.run()
        cut = False
    finally:
        turn = Turn(
            number=len(turns) + 1,
            decision=decision,
            ran=tuple(acting.ran),
            elapsed=acting.spent,
            limit=acting.limit,
            cut=cut,
        )
        with paused(), anyio.CancelScope(shield=True):
            await tell(turn)
    return turn


@dataclass(slots=True)
class _Acting:
    """Carries out one decision. ``spent``: seconds of the turn so far, the deciding included."""

    box: Sandbox
    decision: Decision
    wall: float | None
    spent: float
    ran: list[Ran] = field(default_factory=list)
    limit: HitLimit | None = None

    async def run(self) -> None:
        """Raises ``SandboxLost`` where that ended in a command; what it was is in ``ran`` then."""
        for command in self.decision.commands:
            if self.limit is not None:
                return
            self.ran.append(await self._command(command))
            if not self.box.live:
                with paused():
                    lost = await self.box.wait_lost()
                if lost is not None:
                    raise lost

    async def _command(self, command: str) -> Ran:
        own = self.decision.timeout
        if own is None:
            own = self.box.spec.limits.command_wall
        left = None if self.wall is None else max(0.001, self.wall - self.spent)
        by_turn = left is not None and (own is None or left < own)
        try:
            result = await self.box.run(command, timeout=left if by_turn else own, keep=KEEP)
        except (InvalidInput, OperationFailed) as error:
            return Ran(command=command, error=recordable(str(error)))
        self.spent += result.elapsed
        outcome = result.outcome
        if by_turn and isinstance(outcome, HitLimit) and outcome.kind == "command_wall":
            assert self.wall is not None
            outcome = msgspec.structs.replace(outcome, kind="turn_wall", limit=self.wall, used=self.spent)
            self.limit = outcome
        return _ran(command, result, outcome if isinstance(outcome, HitLimit) else None)


def _ran(command: str, result: CommandResult, limit: HitLimit | None) -> Ran:
    return Ran(
        command=command,
        outcome=limit or result.outcome,
        stdout=result.stdout_bytes,
        stderr=result.stderr_bytes,
        stdout_total=result.stdout_total,
        stderr_total=result.stderr_total,
        elapsed=result.elapsed,
        cpu=result.usage.cpu_user + result.usage.cpu_system,
        oom_kills=result.usage.oom_kills,
        process_denials=result.usage.process_denials,
    )


async def _answer(box: Sandbox, path: str) -> Candidate:
    """The text of the file. None, or one that nobody could have meant, is judged as wrong here."""
    try:
        info = await box.files.stat(path)  # nothing runs in there that could replace it now
        if info.kind != "file":
            raise _wrong(f"the agent's answer {path!r} is a {info.kind}, not a file")
        data = await box.read(path, limit=ANSWER_MOST + 1)
    except FileFailed as error:
        missing = error.errno == errno.ENOENT
        raise _wrong(f"the agent left no file {path!r}" if missing else f"the agent's answer: {error}") from error
    if len(data) > ANSWER_MOST:
        raise _wrong(f"the agent's answer {path!r} has more than {ANSWER_MOST} bytes")
    return Candidate(completion=data.decode("utf-8", "replace"))


def _wrong(reason: str) -> Decided:
    return Decided(Verdict(ending="failed", reason=recordable(reason)))
