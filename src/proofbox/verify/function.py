"""Judges function tasks: the candidate's function in a sandbox of its own, the asserts in a grader sandbox.

Design section 8.4. Between the two only plain data travels, through the host, which does not look into it. The verdict
is the grader's; the host adds only what it measured itself: the clock, how the candidate's process ended, the kernel's
counters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio
import msgspec
from anyio.abc import TaskGroup

from proofbox.errors import SandboxLost, VerifierFailed
from proofbox.kit.clock import paused
from proofbox.model.limits import Limits
from proofbox.model.outcome import HitLimit
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.sandbox.commands import watch
from proofbox.sandbox.given import as_user, is_root
from proofbox.verify.ending import Evidence, ended_by, verdict_of
from proofbox.verify.exchange import GIVEN_BACK, PATIENCE, START, Connection, Exchange, Gone
from proofbox.verify.frames import frame
from proofbox.verify.graders import Grader, Graders
from proofbox.verify.inside.plain import MAX_BYTES, encode
from proofbox.verify.plan import planned_calls
from proofbox.verify.texts import CANDIDATE

if TYPE_CHECKING:
    from proofbox.sandbox.api import Sandbox
    from proofbox.sandbox.commands import Command
    from proofbox.sandbox.host import Host
    from proofbox.sandbox.result import CommandResult

AT_ONCE: Final = 2
"""Candidates for each processor that are judged at once; others wait, and waiting counts against nobody. More would not
be faster, and a few endless loops would starve each other until each looks like the host's fault."""
LOG: Final = 4096
"""Bytes of each of stdout and stderr that are kept for a person."""
OUTPUT: Final = 64 << 20
"""Bytes that a candidate may print where nobody said another limit."""
NOBODY: Final = "65534:65534"
"""User and group of a candidate that must not be root, by number: a template may know neither."""
LEAVE: Final = 0.5
"""Seconds that a candidate has to exit after it closed its channel, before it is killed."""


class FunctionVerifier:
    """Use as an async context manager; it holds the graders. Any number of ``judge`` may be called at once.

    ``limits`` are for the candidates' sandboxes, where the task is silent. After the context every sandbox is gone.
    """

    def __init__(self, host: Host, *, limits: Limits | None = None) -> None:
        self._host = host
        self._limits = (limits or Limits()).over(Limits(output=OUTPUT))
        self._group: TaskGroup | None = None
        self._graders: Graders | None = None
        self._unplanned: set[str] = set()
        self._slots = anyio.CapacityLimiter(AT_ONCE * len(os.sched_getaffinity(0)))

    @property
    def limits(self) -> Limits:
        """What candidates' sandboxes are asked to have where the task is silent."""
        return self._limits

    @property
    def at_once(self) -> int:
        """Candidates that it judges at one time, at most: it holds so many sandboxes, and its graders."""
        return int(self._slots.total_tokens)

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._graders = Graders(self._host, self._group)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._graders = None
        if self._group is not None:
            self._group.cancel_scope.cancel()
            # Not told of the error: it would come out wrapped in a group, and it is the caller's own.
            await self._group.__aexit__(None, None, None)

    @property
    def graders(self) -> tuple[Grader, ...]:
        """Those that are in use now, one for each template at most."""
        return self._graders.live if self._graders is not None else ()

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        """The verdict on one candidate, in a new sandbox. Safe to repeat: nothing of an earlier call is used.

        Raises ``SandboxLost`` or ``VerifierFailed`` when the infrastructure broke, ``Refused`` when the host cannot
        enforce a limit; none of them says anything about the candidate. Cancelled, its sandbox is gone.
        """
        size = len(task.judge.prompt) + len(candidate.completion)
        if size > MAX_BYTES // 4:
            return Verdict(ending="failed", reason=f"the program has {size} characters ({MAX_BYTES // 4} are allowed)")
        if task.id not in self._unplanned:
            verdict = await self._attempt(task, candidate, planned_calls(task.judge))
            if verdict is not None:
                return verdict
            self._unplanned.add(task.id)
        verdict = await self._attempt(task, candidate, ())
        if verdict is None:
            raise VerifierFailed(f"task {task.id}: the grader left a plan of calls that it was not given")
        return verdict

    async def _attempt(self, task: Task, candidate: Candidate, planned: Sequence[bytes]) -> Verdict | None:
        """None if the tests did not call as planned: another sandbox has to do it, without a plan."""
        if self._graders is None:
            raise RuntimeError("FunctionVerifier is used outside of its async context")
        asked = anyio.current_time()
        with paused():  # who waits for others is not timed
            await self._slots.acquire()
        try:
            return await self._turn(self._graders, task, candidate, planned, asked)
        finally:
            self._slots.release()

    async def _turn(
        self, graders: Graders, task: Task, candidate: Candidate, planned: Sequence[bytes], asked: float
    ) -> Verdict | None:
        with paused():  # whoever makes it, for all
            grader = await graders.get(task.template)
        limits = task.limits.over(self._limits)
        begun = anyio.current_time()
        # The grader's child reads the tests while the candidate's sandbox is made.
        async with (
            grader.child(_exam(task.judge, planned)) as child,
            self._host.open_sandbox(task.template, limits=limits) as box,
        ):
            created = anyio.current_time()
            try:
                evidence = await _examine(box, grader, child, task, candidate, planned)
            except SandboxLost as error:
                if error.reason in ("cpu_time", "memory", "processes") and isinstance(error.limit, HitLimit):
                    return ended_by(error.limit)
                raise
            ended = anyio.current_time()
        found = evidence.found
        if found.word == "again":
            return None
        timings = {
            "slot": begun - asked,
            "create": created - begun,
            "start": found.start,
            "calls": found.calls,
            "collect": ended - created - found.start - found.calls,
            "destroy": anyio.current_time() - ended,
        }
        return msgspec.structs.replace(verdict_of(task, evidence), timings=timings)


def _exam(tests: FunctionTests, planned: Sequence[bytes]) -> bytes:
    return encode((tests.prompt, tests.test, tests.entry_point, list(planned), tests.timeout + 1.0))


async def _examine(
    box: Sandbox, grader: Grader, child: Connection, task: Task, candidate: Candidate, planned: Sequence[bytes]
) -> Evidence:
    """Starts the candidate, lets it answer the grader's child, and stops it when the verdict is there."""
    tests = task.judge
    # The guest's own deadline is only for the case that this process hangs; the exchange has the real one.
    backstop = START + tests.timeout * (1 + GIVEN_BACK) + 2 * PATIENCE
    command = await box.start(CANDIDATE, cwd="/tmp", user=_user(box), channel=True, keep=LOG, timeout=backstop)
    program = frame(b"P", encode((tests.prompt + candidate.completion, tests.entry_point)))
    await command.channel.send(grader.harness + program + b"".join(frame(b"C", call) for call in planned))
    exchange = Exchange(
        command.channel, child, planned=len(planned), timeout=tests.timeout, watching=partial(watch, command)
    )
    try:
        found = await exchange.run()
    except VerifierFailed:
        grader.retire()
        raise
    if found.word == "died":
        grader.retire()
    if found.gone is None:
        # It still serves its channel; the end of its sandbox, a moment from now, ends it too.
        return Evidence(found, None, await _printed(command), await box.usage(), box.spec.limits)
    result = await _stop(command, found.gone)
    log = result.stdout_bytes + result.stderr_bytes
    return Evidence(found, result.outcome, log, await box.usage(), box.spec.limits)


def _user(box: Sandbox) -> str | None:
    """Whom the candidate runs as; None for the template's user.

    Threat: where root inside can end the first process (gVisor), a wrong candidate ends its sandbox instead of being
    failed. That is a loss of the infrastructure's, and tried again.
    """
    probe = box.host.probe
    root = is_root(as_user(box.template.user))
    return NOBODY if root and probe.users and "first process" in probe.differs else None


async def _printed(command: Command) -> bytes:
    """What has come of its output, without waiting for more."""
    parts = []
    with anyio.move_on_after(0):
        async for _, data in command.output():
            parts.append(data)
    return b"".join(parts)


async def _stop(command: Command, gone: Gone) -> CommandResult:
    """Ends the candidate. One that closed its channel is about to exit: how it does that is worth a short wait."""
    if gone.why in ("closed", "broken", "never started"):
        with anyio.move_on_after(LEAVE):
            return await command.wait()
    return await command.kill()
