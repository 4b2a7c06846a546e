"""A live sandbox, as its user sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from proofbox.errors import Refused, SandboxLost
from proofbox.model.fingerprint import Fingerprint
from proofbox.model.isolation import Isolation
from proofbox.model.outcome import Usage
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template
from proofbox.sandbox.commands import DEFAULT_KEEP, Command, Commands
from proofbox.sandbox.connection import Connection, open_connection
from proofbox.sandbox.fileops import FileOperations
from proofbox.sandbox.files import FileInfo, Files
from proofbox.sandbox.fingerprint import take
from proofbox.sandbox.fork import Forking, Origin
from proofbox.sandbox.given import as_seconds
from proofbox.sandbox.isolation import look
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.result import CommandResult
from proofbox.sandbox.setting import Setting
from proofbox.wire import guest
from proofbox.wire.frames import WireError

if TYPE_CHECKING:
    from proofbox.sandbox.host import Host

KILL_ALL_SECONDS = 10.0


class Sandbox(Forking):
    """One sandbox that is live until it is closed, lost, frozen or at its wall limit. Made by ``Host.open_sandbox``.

    Every method raises ``SandboxLost`` once it is gone, with the reason. Any number of tasks may use it at once.
    """

    def __init__(self, host: Host, life: Life, setting: Setting, origin: Origin) -> None:
        super().__init__(host, origin)
        self.host = host
        self.template: Template = origin.order.template
        self.spec: SandboxSpec = life.spec
        self.id = life.spec.id
        self.timings = life.timings
        """Seconds of ``create``, ``start``, ``connect``, after the end ``destroy``; ``claim`` if it is from a pool."""
        self._life = life
        self._setting = setting
        self._commands = Commands(life, setting)
        self._operations = FileOperations(life, setting, self._commands)
        self.files = Files(self._operations)

    @property
    def live(self) -> bool:
        """It can be used. False is final."""
        return self._life.state == "live"

    async def run(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        cpu_time: float | None = None,
        grace: float = 0.0,
        keep: int = DEFAULT_KEEP,
        merge: bool = False,
        pty: tuple[int, int] | None = None,
        op: str | None = None,
    ) -> CommandResult:
        """Runs one command and waits for its end: shell text (``/bin/sh -c``) or a sequence of arguments.

        Returns when the command itself has exited; what it left in the background goes on and is counted. Its stdin is
        ``/dev/null`` or what is given. ``timeout`` (seconds; else the sandbox's ``command_wall``) ends its whole tree,
        with SIGTERM and ``grace`` seconds first if there are some; the result then has what was printed until then.
        ``cpu_time`` (seconds; else its ``command_cpu_time``) ends it at once when its tree has used so much. The first
        ``keep`` bytes of stdout and of stderr are kept. ``merge`` puts stderr into stdout, ``pty`` (rows,
        columns) gives it a terminal. ``env`` goes over the sandbox's. With ``op`` a repetition under the same id gives
        the first result.

        Cancelled, its whole tree is ended before this returns. Not safe to repeat without ``op``. Raises
        ``InvalidInput``, ``OperationFailed`` (it did not start), ``Refused``, ``Busy``, ``SandboxLost``.
        """
        asked = {"cwd": cwd, "env": env, "user": user, "timeout": timeout, "cpu_time": cpu_time, "grace": grace}
        return await self._commands.run(command, stdin, op, {**asked, "keep": keep, "merge": merge, "pty": pty})

    async def start(
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
    ) -> Command:
        """Starts one command and returns when it runs. Arguments as in ``run``.

        ``stdin`` gives it a pipe to ``send`` to, ``channel`` a socket as its descriptor 3. With ``keep=None`` its
        output is not kept but flows to the reader of ``output``, for which it waits. Cancelled, the command is ended.
        """
        asked = {"cwd": cwd, "env": env, "user": user, "timeout": timeout, "cpu_time": cpu_time, "grace": grace}
        return await self._commands.start(
            command, stdin, {**asked, "channel": channel, "keep": keep, "merge": merge, "pty": pty}
        )

    async def write(
        self,
        path: str | bytes,
        data: bytes | str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        """Writes a whole file, all or nothing. See ``Files.write``."""
        return await self.files.write(path, data, mode=mode, owner=owner, user=user, parents=parents, append=append)

    async def read(
        self, path: str | bytes, *, user: str | None = None, offset: int = 0, limit: int | None = None
    ) -> bytes:
        """Reads a file. See ``Files.read``."""
        return await self.files.read(path, user=user, offset=offset, limit=limit)

    async def connect(self, to: int | str | bytes) -> Connection:
        """Connects to a server inside: a TCP port on 127.0.0.1, a Unix socket's path, "@name" for an abstract one.

        Raises ``OperationFailed`` with step ``connect`` and the errno.
        """
        return await open_connection(self._life, to)

    async def kill_all(self) -> int:
        """Ends every process in it but its guest, and confirms that; how many there were. Running commands are
        ``Killed``.

        Raises ``SandboxLost``, and ends the sandbox, if they cannot be ended. Cancelled, they are ended all the same.
        """
        stream = self._life.channel.kill_all()
        with anyio.move_on_after(KILL_ALL_SECONDS):
            await stream.done.wait()
        if stream.error is not None:
            raise stream.lost()
        try:
            reply = None if stream.reply is None else guest.KILL_ALL_LAYOUT.decode(stream.reply)
        except WireError:
            reply = None
        if reply is None or not reply.gone:
            error = SandboxLost(
                f"sandbox {self.id}: its processes did not end when they were killed; it was ended", "guest"
            )
            self._life.lose(error)
            raise error
        return reply.killed

    async def commands(self) -> list[Command]:
        """Those that were started with ``start``: the running ones, and the latest 256 that have ended."""
        return self._commands.all()

    async def usage(self) -> Usage:
        """What it has used so far, read from outside."""
        return await self._life.usage()

    async def fingerprint(self, full: bool = False) -> Fingerprint:
        """What it is now, part by part: files, processes, sockets, mounts and so on, to compare with another one of the
        same template and form by ``proofbox.difference``.

        The cheap form counts what was written and opened, and takes about a millisecond; the full one names every file
        and setting, and takes as long as a walk over all files. The guest tells most of it, and its word is as good as
        the sandbox: what runs inside as root could change it. Raises ``Refused`` at level ``none``, where a sandbox has
        nothing of its own to tell, ``OperationFailed``, ``SandboxLost``. Changes nothing; safe to repeat.
        """
        if self.host.level == "none":
            raise Refused(
                f"the fingerprint of sandbox {self.id}", ("at level 'none' its files and processes are the host's",)
            )
        return await take(self._operations, self._setting, full=full)

    async def isolation(self) -> Isolation:
        """What keeps it apart from this host, found on its first process from outside; under a millisecond."""
        await self._life.channel.ask().answer()
        return look(self._life, self.host)

    async def wait_lost(self, timeout: float | None = None) -> SandboxLost | None:
        """Waits until it is gone, for whatever reason, and tells the reason; None if it is still there after
        ``timeout``.
        """
        with anyio.move_on_after(None if timeout is None else as_seconds(timeout, "timeout", zero=True)):
            return await self._life.wait()
        return None

    async def aclose(self) -> None:
        """Ends it and removes all of it; who still waits gets ``SandboxLost``. Idempotent; finishes when cancelled
        too.
        """
        await self._life.end()
