"""Graders: sandboxes in which the tests run, and no code of a candidate ever. One serves many candidates."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from proofbox.errors import ProofboxError, VerifierFailed
from proofbox.model.limits import Limits
from proofbox.sandbox.isolation import tell_of_use
from proofbox.verify.exchange import Connection
from proofbox.verify.frames import BadFrame, Splitter, frame
from proofbox.verify.texts import grader_command

if TYPE_CHECKING:
    from proofbox.sandbox.api import Sandbox
    from proofbox.sandbox.commands import Command
    from proofbox.sandbox.host import Host

START: Final = 60.0
"""Seconds until a grader's server must listen."""

LIMITS: Final = Limits(open_files=4096, wall=30 * 86400.0)
"""More than the defaults: a connection for each child, and a life as long as the verifier's."""
WHERE_ENFORCED: Final = Limits(processes=2048, memory=2 << 30)
"""The same, if the host can: many children at once."""


class Grader:
    """One grader sandbox. ``harness`` is the candidates' side, compiled by this sandbox's interpreter."""

    def __init__(self, box: Sandbox, path: str, harness: bytes) -> None:
        self.box = box
        self.harness = harness
        self.retired = False
        self._path = path
        self._users = 0
        self._idle = anyio.Event()

    def retire(self) -> None:
        """Nobody new comes to it: something in it behaved as it never should. It ends with its last user."""
        self.retired = True
        if not self._users:
            self._idle.set()

    async def unused(self) -> None:
        """Waits until it is retired and its last user has left."""
        await self._idle.wait()

    @asynccontextmanager
    async def child(self, exam: bytes) -> AsyncIterator[Connection]:
        """A fresh child of its server that has been given an exam; the sandbox stays alive meanwhile.

        Raises ``VerifierFailed``, and retires the grader, if it does not answer. Afterwards the child is gone.
        """
        tell_of_use(self.box)
        self._users += 1
        try:
            connection = await self._connect(exam)
            try:
                yield connection
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.aclose()
        finally:
            self._users -= 1
            if self.retired and not self._users:
                self._idle.set()

    async def _connect(self, exam: bytes) -> Connection:
        try:
            connection = await self.box.connect(self._path)
        except ProofboxError as error:
            self.retire()
            raise VerifierFailed(f"the grader does not answer: {error}") from error
        try:
            await connection.send(frame(b"T", exam))
        except ProofboxError as error:
            self.retire()
            raise VerifierFailed(f"the grader was lost before it judged: {error}") from error
        except BaseException:  # cancelled: nobody else would close it
            with anyio.CancelScope(shield=True):
                await connection.aclose()
            raise
        return connection


class Graders:
    """The graders of one verifier, by template. Made when they are first needed, again when one was retired."""

    def __init__(self, host: Host, group: TaskGroup) -> None:
        self._host = host
        self._group = group
        self._live: dict[str, Grader] = {}
        self._making: dict[str, anyio.Lock] = {}

    @property
    def live(self) -> tuple[Grader, ...]:
        """Those that a new candidate would get."""
        return tuple(grader for grader in self._live.values() if not grader.retired)

    async def get(self, template: str) -> Grader:
        """A grader of that template. Raises ``VerifierFailed``, ``CreateFailed``, ``Refused``; nothing is left then."""
        grader = self._live.get(template)
        if grader is not None and not grader.retired:
            return grader
        async with self._making.setdefault(template, anyio.Lock()):
            grader = self._live.get(template)
            if grader is None or grader.retired:
                # A task of its own holds the sandbox: whoever asked first may be cancelled, the others need it still.
                grader = await self._group.start(self._hold, template)
                assert isinstance(grader, Grader)
                self._live[template] = grader
            return grader

    async def _hold(self, template: str, *, task_status: TaskStatus[Grader]) -> None:
        more = WHERE_ENFORCED
        enforced = {kind: getattr(more, kind) for kind in more.asked() if kind in self._host.probe.enforces}
        path = f"@proofbox-grader-{secrets.token_hex(8)}"
        async with self._host.open_sandbox(template, limits=Limits(**enforced).over(LIMITS)) as box:
            command = await box.start(grader_command(path), channel=True, keep=4096)
            grader = Grader(box, path, await _harness(command))
            task_status.started(grader)
            async with anyio.create_task_group() as group:
                group.start_soon(_watch, command, grader)
                await grader.unused()
                group.cancel_scope.cancel()


async def _watch(command: Command, grader: Grader) -> None:
    """A server that ended, or whose sandbox did, is not used again. Who is using it sees its connection end."""
    try:
        await command.wait()
    except ProofboxError:
        pass
    grader.retire()


async def _harness(command: Command) -> bytes:
    """The first frame of the server, which listens when it sends it."""
    splitter = Splitter()
    frames: list[bytes] = []
    with anyio.move_on_after(START):
        while not frames:
            data = await command.channel.receive()
            if not data:
                break
            try:
                frames = splitter.feed(data)
            except BadFrame:
                break
        if frames:
            return frames[0]
    result = await command.kill()
    raise VerifierFailed(
        f"the grader's server did not start within {START:.0f} s: {result.outcome}; stderr: {result.stderr[-500:]!r}. "
        "The template needs python3 (3.8 or later) with its standard library"
    )
