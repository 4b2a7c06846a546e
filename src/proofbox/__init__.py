"""Runs code that a model wrote, in isolation, thousands of times, and gives scores that can be trusted.

The public names. Importing this does no I/O and imports nothing: each name is loaded where it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from proofbox.build.api import build_template
    from proofbox.errors import (
        BrokenTask,
        BuildFailed,
        Busy,
        CreateFailed,
        FileFailed,
        InvalidInput,
        OperationFailed,
        ProofboxError,
        ProtocolViolation,
        Refused,
        SandboxLost,
        SetupFailed,
        StoreFailed,
        UncleanStart,
        UnknownTemplate,
        VerifierFailed,
    )
    from proofbox.model.evidence import Evidence
    from proofbox.model.fingerprint import Fingerprint, difference
    from proofbox.model.isolation import Isolation
    from proofbox.model.limits import DEFAULTS, Limits, Walls
    from proofbox.model.outcome import Exited, HitLimit, Killed, Lost, Outcome, Signaled, Usage
    from proofbox.model.spec import Level, Network, SandboxSpec, Volume
    from proofbox.model.task import Candidate, FunctionTests, Task, Workspace
    from proofbox.model.template import Template
    from proofbox.model.turn import Decision, Ran, Turn
    from proofbox.model.verdict import Verdict
    from proofbox.sandbox.api import Sandbox
    from proofbox.sandbox.commands import Command
    from proofbox.sandbox.connection import Connection
    from proofbox.sandbox.files import FileInfo, Files
    from proofbox.sandbox.host import Host, open_pool, open_sandbox
    from proofbox.sandbox.pool import Pool
    from proofbox.sandbox.pool_stats import PoolStats
    from proofbox.sandbox.result import CommandResult, CommandUsage
    from proofbox.sandbox.trees import TreeInfo

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "proofbox.build.api": ("build_template",),
    "proofbox.errors": (
        "BrokenTask",
        "BuildFailed",
        "Busy",
        "CreateFailed",
        "FileFailed",
        "InvalidInput",
        "OperationFailed",
        "ProofboxError",
        "ProtocolViolation",
        "Refused",
        "SandboxLost",
        "SetupFailed",
        "StoreFailed",
        "UncleanStart",
        "UnknownTemplate",
        "VerifierFailed",
    ),
    "proofbox.model.evidence": ("Evidence",),
    "proofbox.model.limits": ("DEFAULTS", "Limits", "Walls"),
    "proofbox.model.fingerprint": ("Fingerprint", "difference"),
    "proofbox.model.isolation": ("Isolation",),
    "proofbox.model.outcome": ("Exited", "HitLimit", "Killed", "Lost", "Outcome", "Signaled", "Usage"),
    "proofbox.model.spec": ("Level", "Network", "SandboxSpec", "Volume"),
    "proofbox.model.task": ("Candidate", "FunctionTests", "Task", "Workspace"),
    "proofbox.model.template": ("Template",),
    "proofbox.model.turn": ("Decision", "Ran", "Turn"),
    "proofbox.model.verdict": ("Verdict",),
    "proofbox.sandbox.api": ("Sandbox",),
    "proofbox.sandbox.commands": ("Command",),
    "proofbox.sandbox.connection": ("Connection",),
    "proofbox.sandbox.files": ("FileInfo", "Files"),
    "proofbox.sandbox.host": ("Host", "open_pool", "open_sandbox"),
    "proofbox.sandbox.pool": ("Pool",),
    "proofbox.sandbox.pool_stats": ("PoolStats",),
    "proofbox.sandbox.result": ("CommandResult", "CommandUsage"),
    "proofbox.sandbox.trees": ("TreeInfo",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "DEFAULTS",
    "BrokenTask",
    "BuildFailed",
    "Busy",
    "Candidate",
    "Command",
    "CommandResult",
    "CommandUsage",
    "Connection",
    "CreateFailed",
    "Decision",
    "Evidence",
    "Exited",
    "FileFailed",
    "FileInfo",
    "Files",
    "Fingerprint",
    "FunctionTests",
    "HitLimit",
    "Host",
    "InvalidInput",
    "Isolation",
    "Killed",
    "Level",
    "Limits",
    "Lost",
    "Network",
    "OperationFailed",
    "Outcome",
    "Pool",
    "PoolStats",
    "ProofboxError",
    "ProtocolViolation",
    "Ran",
    "Refused",
    "Sandbox",
    "SandboxLost",
    "SandboxSpec",
    "SetupFailed",
    "Signaled",
    "StoreFailed",
    "Task",
    "Template",
    "TreeInfo",
    "Turn",
    "UncleanStart",
    "UnknownTemplate",
    "Usage",
    "Verdict",
    "VerifierFailed",
    "Volume",
    "Walls",
    "Workspace",
    "build_template",
    "difference",
    "open_pool",
    "open_sandbox",
]


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("proofbox.sync")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'proofbox' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
