"""Inspect: ``sandbox="proofbox"`` in a task of inspect-ai, which finds it through the entry point ``inspect_ai``.

Differences that its users should know:

- a command that timed out is never run again, whatever ``timeout_retry`` says: it may have acted;
- a sandbox that is lost is an error of the sample, never a tool's answer that a model goes on from and is scored by;
- output above Inspect's limit raises ``OutputLimitExceededError``; nothing is cut silently;
- commands run as the user ``user`` where the template is ``host`` and users exist; ``user="root"`` is the sandbox's
  own root.
"""

from __future__ import annotations

import errno
import posixpath
from contextlib import AsyncExitStack
from typing import Any, Literal, NoReturn, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from proofbox.errors import FileFailed, InvalidInput, OperationFailed, Refused
from proofbox.model.limits import Limits
from proofbox.model.outcome import HitLimit
from proofbox.model.spec import Level
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.sandbox.result import CommandResult


class ProofboxConfig(BaseModel):
    """What a task can ask for: ``sandbox=SandboxEnvironmentSpec("proofbox", ProofboxConfig(memory=2**30))``.

    ``user`` None is ``user`` in the template ``host``, else the template's own. ``timeout`` is seconds for a command
    that has none. Limits are bytes, seconds and counts; None is Proofbox's default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str = "host"
    runtime: str | None = None
    level: Level = "container"
    user: str | None = None
    env: dict[str, str] = {}
    timeout: float | None = None
    memory: int | None = None
    processes: int | None = None
    cpus: float | None = None
    disk: int | None = None
    wall: float | None = None

    def limits(self) -> Limits:
        """As the sandbox takes them."""
        return Limits(
            memory=self.memory,
            processes=self.processes,
            cpus=self.cpus,
            disk=self.disk,
            wall=self.wall,
            command_wall=self.timeout,
        )


def _config(given: SandboxEnvironmentConfigType | None) -> ProofboxConfig:
    if given is None:
        return ProofboxConfig()
    if isinstance(given, ProofboxConfig):
        return given
    if isinstance(given, str):
        return ProofboxConfig(template=given)
    raise InvalidInput(f"sandbox configuration {type(given).__name__}: give a ProofboxConfig or the name of a template")


@sandboxenv(name="proofbox")
class ProofboxSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample. Made by ``sample_init``, destroyed by ``sample_cleanup``, also after a cancellation."""

    def __init__(self, box: Sandbox, user: str | None, home: str, opened: AsyncExitStack) -> None:
        super().__init__()
        self.box = box
        self._user = user
        self._home = home
        self._opened = opened

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Opens the sandbox. Raises ``Refused`` with what this host lacks; then, or when cancelled, nothing is left."""
        asked = _config(config)
        host = await Host.local(asked.runtime, asked.level)
        async with AsyncExitStack() as opening:
            box = await opening.enter_async_context(
                host.open_sandbox(asked.template, limits=asked.limits(), env=asked.env)
            )
            user = asked.user
            if user is None and asked.template == "host" and host.probe.users:
                user = "user"
            home = (await box.run("cd && pwd", user=user)).stdout.removesuffix("\n") or "/"
            return {"default": cls(box, user, home, opening.pop_all())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Destroys the sandboxes. Safe to repeat."""
        with anyio.CancelScope(shield=True):
            for environment in environments.values():
                await environment.as_type(cls)._opened.aclose()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A ``ProofboxConfig`` from a log."""
        return ProofboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command once. Errors as Inspect names them; see the head of this module for what differs."""
        try:
            result = await self.box.run(
                cmd,
                cwd=posixpath.join(self._home, cwd or ""),
                env=env,
                user=user or self._user,
                stdin=input,
                timeout=timeout,
                keep=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
            )
        except Refused as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        except OperationFailed as error:
            # As a container engine answers what it could not start: a failed command with a message.
            return ExecResult(False, 126, "", f"{error}\n")
        return _translate(cmd, result, timeout)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file whole or not at all, as the sample's user."""
        try:
            await self.box.write(self._path(file), contents, user=self._user)
        except FileFailed as error:
            _raise_named(error, file)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file whole, as the sample's user, or raises ``OutputLimitExceededError``."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.box.read(self._path(file), user=self._user, limit=limit + 1)
        except FileFailed as error:
            _raise_named(error, file)
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode("utf-8") if text else data

    def _path(self, file: str) -> str:
        return posixpath.join(self._home, file)


def _translate(cmd: list[str], result: CommandResult, timeout: float | None) -> ExecResult[str]:
    outcome = result.outcome
    if isinstance(outcome, HitLimit) and outcome.kind in ("command_wall", "wall"):
        raise TimeoutError(f"{cmd[0]!r} passed its limit of {outcome.limit} s (ran for {outcome.elapsed:.3f} s)")
    if result.truncated or (isinstance(outcome, HitLimit) and outcome.kind == "output"):
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
    stderr = result.stderr
    if isinstance(outcome, HitLimit):
        stderr += f"proofbox: ended by the limit {outcome.kind} of {outcome.limit}\n"
    if result.returncode == 126 and "permission denied" in stderr.lower() and not result.stdout:
        raise PermissionError(errno.EACCES, stderr.strip() or "Permission denied", cmd[0])
    code = 137 if result.returncode is None else result.returncode
    return ExecResult(result.ok, code, result.stdout, stderr)


def _raise_named(error: FileFailed, file: str) -> NoReturn:
    """Raises the subclass of ``OSError`` that the number stands for, as ``open`` does."""
    number = errno.EACCES if error.errno in (errno.EROFS, errno.EPERM) else error.errno
    raise OSError(number, error.strerror or str(error), file) from error
