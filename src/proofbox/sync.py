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

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from proofbox.errors import InvalidInput, SandboxLost
from proofbox.kit.thread import Loop, loop_of_process
from proofbox.model.fingerprint import Fingerprint
from proofbox.model.isolation import Isolation
from proofbox.model.limits import Limits
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, Network, SandboxSpec, Volume
from proofbox.model.template import Template
from proofbox.sandbox import api, commands, connection, host, pool
from proofbox.sandbox.channel import READ_SIZE
from proofbox.sandbox.commands import DEFAULT_KEEP, Scope
from proofbox.sandbox.files import FileInfo
from proofbox.sandbox.pool import FILLING, KEEP
from proofbox.sandbox.pool_stats import PoolStats
from proofbox.sandbox.result import CommandResult
from proofbox.sync_files import Files

if TYPE_CHECKING:
    from proofbox.build.events import Tell
    from proofbox.build.recipe import Recipe

T = TypeVar("T")
S = TypeVar("S")


class _Opened(AbstractContextManager[S], Generic[T, S]):
    """A sandbox or a pool for the length of a ``with`` block: opened on the loop by ``make``, shown as by ``dress``."""

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[T]],
        dress: Callable[[Loop, T], S],
        loop: Loop | None = None,
    ) -> None:
        self._make = make
        self._dress = dress
        self._loop = loop
        self._inner: AbstractAsyncContextManager[T] | None = None

    def __enter__(self) -> S:
        loop = self._loop = self._loop or loop_of_process()
        opened: list[T] = []

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
        return self._dress(loop, opened[0])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._loop is None or self._inner is None:
            raise InvalidInput("this was not entered: use `with open_sandbox(...) as box`")
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
    verify_start: bool = False,
    seed: str | int | None = None,
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
            verify_start=verify_start,
            seed=seed,
        )

    return _Opened(make, Sandbox)


def open_pool(
    template: str | Template = "host",
    *,
    runtime: str | None = None,
    level: Level = "container",
    allow_unisolated: bool = False,
    size: tuple[int, int] = (2, 16),
    keep: float = KEEP,
    at_once: int = FILLING,
    limits: Limits | None = None,
    network: Network = "none",
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    volumes: Sequence[Volume] = (),
    hostname: str = "sandbox",
    verify_start: bool = False,
) -> AbstractContextManager[Pool]:
    """``proofbox.open_pool`` as a plain context manager."""

    def make() -> AbstractAsyncContextManager[pool.Pool]:
        return host.open_pool(
            template,
            runtime=runtime,
            level=level,
            allow_unisolated=allow_unisolated,
            size=size,
            keep=keep,
            at_once=at_once,
            limits=limits,
            network=network,
            user=user,
            env=env,
            cwd=cwd,
            volumes=volumes,
            hostname=hostname,
            verify_start=verify_start,
        )

    return _Opened(make, Pool)


def build_template(
    source: Recipe | str | os.PathLike[str],
    name: str | None = None,
    *,
    context: str | os.PathLike[str] | None = None,
    args: Mapping[str, str] | None = None,
    bases: Mapping[str, str] | None = None,
    target: str | None = None,
    network: Network | None = None,
    limits: Limits | None = None,
    fresh: bool = False,
    repull: bool = False,
    runtime: str | None = None,
    level: Level = "container",
    tell: Tell | None = None,
) -> Template:
    """``proofbox.build_template``, waited for. ``tell`` is called in the loop's thread."""
    from proofbox.build.api import build_template as build

    async def built() -> Template:
        return await build(
            source,
            name,
            context=context,
            args=args,
            bases=bases,
            target=target,
            network=network,
            limits=limits,
            fresh=fresh,
            repull=repull,
            runtime=runtime,
            level=level,
            tell=tell,
        )

    return loop_of_process().call(built)


class Connection:
    """See ``proofbox.sandbox.connection.Connection``."""

    def __init__(self, loop: Loop, inner: connection.Connection) -> None:
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

    def __init__(self, loop: Loop, inner: commands.Command) -> None:
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


class Forking:
    """See ``proofbox.sandbox.fork.Forking``."""

    def __init__(self, loop: Loop, inner: api.Sandbox) -> None:
        self._forking_loop = loop
        self._forking = inner

    @property
    def frozen(self) -> bool:
        return self._forking.frozen

    def freeze(self) -> None:
        self._forking_loop.call(self._forking.freeze)

    def fork(
        self, count: int = 1, *, limits: Limits | None = None, memory: bool = False
    ) -> AbstractContextManager[tuple[Sandbox, ...]]:
        return _Opened(
            lambda: self._forking.fork(count, limits=limits, memory=memory),
            lambda loop, children: tuple(Sandbox(loop, child) for child in children),
            self._forking_loop,
        )

    def snapshot(self, name: str | None = None) -> Template:
        return self._forking_loop.call(self._forking.snapshot, name)


class Sandbox(Forking):
    """See ``proofbox.sandbox.api.Sandbox``. Made by ``open_sandbox``."""

    def __init__(self, loop: Loop, inner: api.Sandbox) -> None:
        super().__init__(loop, inner)
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

    def isolation(self) -> Isolation:
        return self._loop.call(self._inner.isolation)

    def usage(self) -> Usage:
        return self._loop.call(self._inner.usage)

    def fingerprint(self, full: bool = False) -> Fingerprint:
        return self._loop.call(self._inner.fingerprint, full)

    def wait_lost(self, timeout: float | None = None) -> SandboxLost | None:
        return self._loop.call(self._inner.wait_lost, timeout)

    def close(self) -> None:
        """``aclose`` of the async API."""
        self._loop.call(self._inner.aclose)


class Pool:
    """See ``proofbox.sandbox.pool.Pool``. Made by ``open_pool``."""

    def __init__(self, loop: Loop, inner: pool.Pool) -> None:
        self._loop = loop
        self._inner = inner

    def claim(
        self,
        *,
        cold: bool = True,
        template: str | Template | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        volumes: Sequence[Volume] | None = None,
        hostname: str | None = None,
        seed: str | int | None = None,
    ) -> AbstractContextManager[Sandbox]:
        def make() -> AbstractAsyncContextManager[api.Sandbox]:
            return self._inner.claim(
                cold=cold,
                template=template,
                limits=limits,
                network=network,
                user=user,
                env=env,
                cwd=cwd,
                volumes=volumes,
                hostname=hostname,
                seed=seed,
            )

        return _Opened(make, Sandbox, self._loop)

    def ready(self, timeout: float | None = None) -> PoolStats:
        return self._loop.call(self._inner.ready, timeout)

    def stats(self) -> PoolStats:
        async def stats() -> PoolStats:
            return self._inner.stats()

        return self._loop.call(stats)

    def close(self) -> None:
        """``aclose`` of the async API."""
        self._loop.call(self._inner.aclose)
