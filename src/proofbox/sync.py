"""The same sandboxes for code without an event loop: every call waits for its result.

    from proofbox import sync

    with sync.open_sandbox("host") as box:
        print(box.run("python3 -c 'print(6*7)'").stdout)

One event loop in one background thread serves the whole process; the objects here may be used from any thread. What a
method does is said in ``proofbox.sandbox.api``: signatures, results and errors are the same, held in step by a test.

- Ctrl-C while a call waits cancels it there, and what it was making is gone when ``KeyboardInterrupt`` comes out.
- A fork does not share sandboxes: they belong to the process that opened them, and a call from another one says so.
- Where an event loop already runs (``async def``, notebooks), a call raises ``InvalidInput``: it would block that loop.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, TypeVar

import sniffio
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from proofbox.errors import InvalidInput, SandboxLost
from proofbox.model.limits import Limits
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, Network, SandboxSpec, Volume
from proofbox.model.template import Template
from proofbox.sandbox import api, commands, connection, files, host
from proofbox.sandbox.channel import READ_SIZE
from proofbox.sandbox.commands import DEFAULT_KEEP, Scope
from proofbox.sandbox.files import FileInfo, Path
from proofbox.sandbox.result import CommandResult

T = TypeVar("T")


class _Loop:
    """The background thread of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal("asyncio", name="proofbox sync"))

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
        """Runs it on the loop and waits. Interrupted, it is cancelled, and has ended when the interruption goes on."""
        _refuse_inside_a_loop()
        if self.pid != os.getpid():
            raise InvalidInput(
                f"this belongs to process {self.pid} and was reached from its fork {os.getpid()}: "
                "open a sandbox of its own in the fork"
            )
        ended = threading.Event()

        async def body() -> T:
            try:
                return await function(*args, **named)
            finally:
                ended.set()

        future = self._portal.start_task_soon(body)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait()
            raise

    def close(self) -> None:
        """Ends the thread; what it still serves is cancelled."""
        if self.pid == os.getpid():
            self._portal.call(self._portal.stop, True)
            self._stack.close()


class _Process:
    """The loop of this process, made at the first call. A fork starts without one."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None
        self._making = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def loop(self) -> _Loop:
        """Safe in any thread."""
        _refuse_inside_a_loop()
        with self._making:
            if self._loop is None:
                self._loop = _Loop()
                atexit.register(self._loop.close)
            return self._loop

    def _forked(self) -> None:
        # The thread is not in the fork, and another thread of the parent may have held the lock for ever.
        self._loop = None
        self._making = threading.Lock()


_process = _Process()


def _refuse_inside_a_loop() -> None:
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return
    raise InvalidInput(
        f"proofbox.sync was called inside a running {library} event loop, which it would block: "
        "use `async with proofbox.open_sandbox(...)` and `await` there"
    )


class _Opened(AbstractContextManager["Sandbox"]):
    """A sandbox for the length of a ``with`` block."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[api.Sandbox]]) -> None:
        self._make = make
        self._loop: _Loop | None = None
        self._inner: AbstractAsyncContextManager[api.Sandbox] | None = None

    def __enter__(self) -> Sandbox:
        loop = self._loop = _process.loop()
        opened: list[api.Sandbox] = []

        async def enter() -> None:
            self._inner = self._make()
            opened.append(await self._inner.__aenter__())

        try:
            loop.call(enter)
        except BaseException:
            # The interruption can come when the sandbox is open already and nobody has been told.
            if opened:
                self.__exit__(None, None, None)
            raise
        return Sandbox(loop, opened[0])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._loop is None or self._inner is None:
            raise InvalidInput("this sandbox was not entered: use `with open_sandbox(...) as box`")
        return self._loop.call(self._inner.__aexit__, kind, error, trace)


def open_sandbox(
    template: str | Template = "host",
    *,
    runtime: str | None = None,
    level: Level = "container",
    allow_unisolated: bool = False,
    limits: Limits | None = None,
    network: Network = "none",
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    volumes: Sequence[Volume] = (),
    hostname: str = "sandbox",
    id: str | None = None,  # noqa: A002 - the name in the async API
) -> AbstractContextManager[Sandbox]:
    """``proofbox.open_sandbox`` as a plain context manager."""

    def make() -> AbstractAsyncContextManager[api.Sandbox]:
        return host.open_sandbox(
            template,
            runtime=runtime,
            level=level,
            allow_unisolated=allow_unisolated,
            limits=limits,
            network=network,
            user=user,
            env=env,
            cwd=cwd,
            volumes=volumes,
            hostname=hostname,
            id=id,
        )

    return _Opened(make)


class Files:
    """See ``proofbox.sandbox.files.Files``."""

    def __init__(self, loop: _Loop, inner: files.Files) -> None:
        self._loop = loop
        self._inner = inner

    def read(self, path: Path, *, user: str | None = None, offset: int = 0, limit: int | None = None) -> bytes:
        return self._loop.call(self._inner.read, path, user=user, offset=offset, limit=limit)

    def read_into(
        self,
        path: Path,
        sink: Callable[[bytes], object],
        *,
        user: str | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> int:
        async def pour(data: bytes) -> None:
            await to_thread.run_sync(sink, data)

        return self._loop.call(self._inner.read_into, path, pour, user=user, offset=offset, limit=limit)

    def write(
        self,
        path: Path,
        data: bytes | str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        return self._loop.call(
            self._inner.write, path, data, mode=mode, owner=owner, user=user, parents=parents, append=append
        )

    def write_from(
        self,
        path: Path,
        source: Iterable[bytes],
        *,
        size: int | None = None,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        return self._loop.call(
            self._inner.write_from,
            path,
            _pieces(source),
            size=size,
            mode=mode,
            owner=owner,
            user=user,
            parents=parents,
            append=append,
        )

    def stat(self, path: Path, *, user: str | None = None, follow: bool = True) -> FileInfo:
        return self._loop.call(self._inner.stat, path, user=user, follow=follow)

    def list(
        self, path: Path, *, user: str | None = None, recursive: bool = False, limit: int | None = None
    ) -> list[FileInfo]:
        return self._loop.call(self._inner.list, path, user=user, recursive=recursive, limit=limit)

    def mkdir(
        self,
        path: Path,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = False,
    ) -> FileInfo:
        return self._loop.call(self._inner.mkdir, path, mode=mode, owner=owner, user=user, parents=parents)

    def remove(self, path: Path, *, user: str | None = None, recursive: bool = False) -> None:
        self._loop.call(self._inner.remove, path, user=user, recursive=recursive)

    def rename(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        return self._loop.call(self._inner.rename, path, target, user=user)

    def readlink(self, path: Path, *, user: str | None = None) -> str:
        return self._loop.call(self._inner.readlink, path, user=user)

    def symlink(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        return self._loop.call(self._inner.symlink, path, target, user=user)

    def chmod(
        self, path: Path, mode: int | None = None, *, owner: str | None = None, user: str | None = None
    ) -> FileInfo:
        return self._loop.call(self._inner.chmod, path, mode, owner=owner, user=user)


async def _pieces(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The iterable, each step of it in a worker thread: it may block, and the loop serves others."""
    iterator = iter(source)
    while (piece := await to_thread.run_sync(next, iterator, None)) is not None:
        yield piece


class Connection:
    """See ``proofbox.sandbox.connection.Connection``."""

    def __init__(self, loop: _Loop, inner: connection.Connection) -> None:
        self._loop = loop
        self._inner = inner

    def send(self, data: bytes | str) -> bool:
        return self._loop.call(self._inner.send, data)

    def send_eof(self) -> None:
        self._loop.call(self._inner.send_eof)

    def receive(self, most: int = READ_SIZE) -> bytes:
        return self._loop.call(self._inner.receive, most)

    def close(self) -> None:
        """``aclose`` of the async API."""
        self._loop.call(self._inner.aclose)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Command:
    """See ``proofbox.sandbox.commands.Command``."""

    def __init__(self, loop: _Loop, inner: commands.Command) -> None:
        self._loop = loop
        self._inner = inner
        self.id = inner.id
        self.pid = inner.pid

    @property
    def over(self) -> bool:
        return self._inner.over

    @property
    def channel(self) -> Connection:
        return Connection(self._loop, self._inner.channel)

    def send(self, data: bytes | str) -> bool:
        return self._loop.call(self._inner.send, data)

    def send_eof(self) -> None:
        self._loop.call(self._inner.send_eof)

    def signal(self, number: int, scope: Scope = "process") -> None:
        self._loop.call(self._inner.signal, number, scope)

    def resize(self, rows: int, cols: int) -> None:
        self._loop.call(self._inner.resize, rows, cols)

    def kill(self) -> CommandResult:
        return self._loop.call(self._inner.kill)

    def wait(self) -> CommandResult:
        return self._loop.call(self._inner.wait)

    def output(self) -> Iterator[tuple[int, bytes]]:
        pieces = self._inner.output()
        while (piece := self._loop.call(anext, pieces, None)) is not None:
            yield piece


class Sandbox:
    """See ``proofbox.sandbox.api.Sandbox``. Made by ``open_sandbox``."""

    def __init__(self, loop: _Loop, inner: api.Sandbox) -> None:
        self._loop = loop
        self._inner = inner
        self.id = inner.id
        self.spec: SandboxSpec = inner.spec
        self.template: Template = inner.template
        self.host = inner.host
        self.timings = inner.timings
        self.files = Files(loop, inner.files)

    @property
    def live(self) -> bool:
        return self._inner.live

    def run(
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
        return self._loop.call(
            self._inner.run,
            command,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout=timeout,
            cpu_time=cpu_time,
            grace=grace,
            keep=keep,
            merge=merge,
            pty=pty,
            op=op,
        )

    def start(
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
        started = self._loop.call(
            self._inner.start,
            command,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout=timeout,
            cpu_time=cpu_time,
            grace=grace,
            keep=keep,
            merge=merge,
            pty=pty,
            channel=channel,
        )
        return Command(self._loop, started)

    def write(
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
        return self.files.write(path, data, mode=mode, owner=owner, user=user, parents=parents, append=append)

    def read(self, path: str | bytes, *, user: str | None = None, offset: int = 0, limit: int | None = None) -> bytes:
        return self.files.read(path, user=user, offset=offset, limit=limit)

    def connect(self, to: int | str | bytes) -> Connection:
        return Connection(self._loop, self._loop.call(self._inner.connect, to))

    def kill_all(self) -> int:
        return self._loop.call(self._inner.kill_all)

    def commands(self) -> list[Command]:
        return [Command(self._loop, command) for command in self._loop.call(self._inner.commands)]

    def usage(self) -> Usage:
        return self._loop.call(self._inner.usage)

    def wait_lost(self, timeout: float | None = None) -> SandboxLost | None:
        return self._loop.call(self._inner.wait_lost, timeout)

    def close(self) -> None:
        """``aclose`` of the async API."""
        self._loop.call(self._inner.aclose)
