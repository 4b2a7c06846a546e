"""Every error that Proofbox raises.

    ProofboxError                  code, blame, again
     +-- InvalidInput              the caller asked for something that makes no sense          caller   no
     |    +-- UnknownTemplate      no template has that name or digest                         caller   no
     |    +-- BrokenTask           a task or a samples file cannot be used                     task     no
     +-- Refused                   this host or runtime does not offer what was asked for      host     elsewhere
     +-- SandboxLost               the sandbox died or left the protocol                       host     new sandbox
     |    +-- CreateFailed         it never came up; nothing of it is left                     host     new sandbox
     |    |    +-- UncleanStart    it is not what its template's sandboxes are; it was ended   host     new sandbox
     |    +-- ProtocolViolation    its guest sent what no guest sends                          task     new sandbox
     +-- OperationFailed           a command or file operation did not start or did not work   task     no
     |    +-- FileFailed           an operation on a path; carries errno                       task     no
     +-- SetupFailed               what prepares the agent's sandbox did not work             task     new sandbox
     +-- AgentFailed               the agent itself broke; there is nothing to judge           agent    new sandbox
     +-- VerifierFailed            the verifier itself broke; says nothing about the candidate verifier new sandbox
     +-- BuildFailed               a step of a build ended with an error                       caller   no
     +-- StoreFailed               a trace could not be written or read                        host     later
     +-- Busy                      a bounded queue is full                                     host     later

An *outcome* (a command's exit code, a limit that fired) is a value, never one of these: see ``proofbox.model.outcome``.
``code`` is one of the closed set ``CODES``; ``blame`` names the side that has to act; ``again`` says whether and how a
repetition is safe.
"""

from __future__ import annotations

import os
from typing import ClassVar, Final, Literal

Blame = Literal["caller", "task", "agent", "verifier", "model", "host"]
Again = Literal["no", "elsewhere", "later", "new sandbox"]

CODES: Final = frozenset(
    {
        "invalid_input",
        "unknown_template",
        "broken_task",
        "refused",
        "sandbox_lost",
        "create_failed",
        "unclean_start",
        "protocol_violation",
        "operation_failed",
        "file_failed",
        "setup_failed",
        "agent_failed",
        "verifier_failed",
        "build_failed",
        "store_failed",
        "busy",
    }
)


class ProofboxError(Exception):
    """The root of the tree. ``str()`` of it is one message for a person: what, on what, the value seen, what to do."""

    code: ClassVar[str] = "operation_failed"
    blame: ClassVar[Blame] = "host"
    again: ClassVar[Again] = "no"


class InvalidInput(ProofboxError, ValueError):
    """An argument, a file or a configuration makes no sense. Nothing was started."""

    code = "invalid_input"
    blame: ClassVar[Blame] = "caller"


class UnknownTemplate(InvalidInput):
    """No template has that name or digest on this host."""

    code = "unknown_template"

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        listed = ", ".join(known) or "none but the built-in 'host'"
        super().__init__(f"no template {name!r} on this host (known: {listed}); `proofbox template list` shows them")
        self.name = name


class BrokenTask(InvalidInput):
    """A task, a task set or a samples file cannot be used. The message names the file and the line."""

    code = "broken_task"
    blame = "task"


class Refused(ProofboxError):
    """The runtime or the host does not offer what the spec asks for. Nothing was created.

    ``missing`` has one sentence for each item, each with its remedy where there is one.
    """

    code = "refused"
    again = "elsewhere"

    def __init__(self, what: str, missing: tuple[str, ...]) -> None:
        super().__init__(f"{what} refused: " + "; ".join(missing))
        self.missing = missing


class SandboxLost(ProofboxError):
    """The sandbox died, or its channel broke, while it was needed. What ran in it is void; nothing of it is left."""

    code = "sandbox_lost"
    again = "new sandbox"

    def __init__(self, message: str, reason: str = "channel", limit: object = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.limit = limit
        """The ``HitLimit`` that ended it, where one did; or one that fired and was the host's doing."""


class CreateFailed(SandboxLost):
    """The sandbox never came up. ``reason`` is the step that failed. Nothing of it is left."""

    code = "create_failed"


class UncleanStart(CreateFailed):
    """Before anything ran in it, the sandbox was not what others of its template are. It was ended; nothing is left.

    ``differences`` name what differs, each with its part: see ``proofbox.model.fingerprint.difference``.
    """

    code = "unclean_start"

    def __init__(self, message: str, differences: tuple[str, ...]) -> None:
        super().__init__(message, "unclean")
        self.differences = differences


class ProtocolViolation(SandboxLost):
    """The guest sent what no guest sends: something inside took it over. The sandbox was ended."""

    code = "protocol_violation"
    blame = "task"

    def __init__(self, message: str) -> None:
        super().__init__(message, "protocol")


class OperationFailed(ProofboxError):
    """A command did not start (unknown user, missing working directory, process limit). Nothing ran."""

    code = "operation_failed"
    blame = "task"

    def __init__(self, message: str, step: str = "", errno: int = 0) -> None:
        super().__init__(message)
        self.step = step
        self.errno = errno


class FileFailed(OperationFailed, OSError):  # type: ignore[misc] # OSError's errno may be None; ours never is
    """An operation on a path inside the sandbox failed; the path is as it was before (of a tree, see ``Trees``).

    It is an ``OSError`` too, with ``errno`` and ``filename``, so ``except FileNotFoundError`` does not catch it but
    ``error.errno == errno.ENOENT`` tells it.
    """

    code = "file_failed"

    def __init__(self, operation: str, path: str, errno: int) -> None:
        OSError.__init__(self, errno, os.strerror(errno), path)
        self.operation = operation
        self.step = operation

    def __str__(self) -> str:
        return f"{self.operation} {self.filename!r} in the sandbox: {self.strerror}"


class SetupFailed(ProofboxError):
    """A task's own setup did not work in a new sandbox. No agent has acted, so it says nothing about any."""

    code = "setup_failed"
    blame = "task"
    again = "new sandbox"

    def __init__(self, message: str, limit: object = None) -> None:
        super().__init__(message)
        self.limit = limit
        """The ``HitLimit`` that it reached, where it took too long."""


class AgentFailed(ProofboxError):
    """The agent broke: its program, not its answer. There is no candidate and no reward; it may act again."""

    code = "agent_failed"
    blame = "agent"
    again = "new sandbox"


class VerifierFailed(ProofboxError):
    """The verifier broke. It says nothing about the candidate: no reward, and the attempt may be judged again."""

    code = "verifier_failed"
    blame = "verifier"
    again = "new sandbox"

    def __init__(self, message: str, limit: object = None) -> None:
        super().__init__(message)
        self.limit = limit
        """The ``HitLimit`` that it reached, where it came too late."""


class BuildFailed(ProofboxError):
    """A step of a build ended with an error. The steps before it are kept; the name means what it meant."""

    code = "build_failed"
    blame = "caller"


class StoreFailed(ProofboxError):
    """A trace could not be written or read. What was acknowledged before is on disk."""

    code = "store_failed"
    again = "later"


class Busy(ProofboxError):
    """A bounded queue is full. Nothing was started; try again later."""

    code = "busy"
    again = "later"
