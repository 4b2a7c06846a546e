"""The OCI runtimes that are known by name, what sets them apart, and any other one by path."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from proofbox.errors import InvalidInput
from proofbox.kit import binary
from proofbox.model.spec import Level

PLATFORM: Final = "PROOFBOX_RUNSC_PLATFORM"
"""The variable of a user who insists on one."""
PATIENCE: Final = 10.0
"""Seconds for a program to tell its version."""


@dataclass(frozen=True, slots=True)
class Make:
    """What one make of OCI runtimes needs of its caller. ``options`` come before its command, ``run`` after it."""

    level: Level
    options: tuple[str, ...]
    run: tuple[str, ...]
    own_tasks: int
    """Its own processes and threads, which count in the sandbox's group while it starts, or for as long as it lives."""
    own_boot_id: bool
    """It mounts a file below /proc/sys, as runc does not."""
    package: str = ""
    platforms: tuple[str, ...] = ()
    """Ways in which it can run a sandbox, the best first: which of them work here only trying tells."""

    @property
    def own_kernel(self) -> bool:
        """A sandbox's system calls are answered by a kernel of its own, gVisor's."""
        return self.level == "user-kernel"

    @property
    def detaches(self) -> bool:
        """It ends when the sandbox runs."""
        return _DETACH in self.run

    @property
    def channel(self) -> int:
        """The descriptor at which the guest finds its channel: old versions of runsc hand on no others than the
        standard ones, and runc copies those.
        """
        return 0 if self.own_kernel else 3


GVISOR_TASKS: Final = 4000
"""Processes and threads in a sandbox of gVisor: its kernel is a program of Go, which ends at 10,000 threads of its own.
With 4,000 inside it was seen to live, with 4,500 not.
"""

_PASSED: Final = ("--preserve-fds", "1")
_DETACH: Final = "--detach"
"""The program does not stay to wait for the sandbox's end: ours waits anyway, with a hundredth of the memory."""
MAKES: Final[dict[str, Make]] = {
    # Groups are ours: crun must not make any, and runc takes read-only ones for a reason to leave them alone.
    "crun": Make("container", ("--cgroup-manager=disabled",), (_DETACH, "--no-new-keyring", *_PASSED), 3, True, "crun"),
    "runc": Make("container", ("--rootless=true",), (_DETACH, "--no-new-keyring", *_PASSED), 12, False, "runc"),
    # What is written goes to our layer, and not over it into a file or memory of its own. KVM comes last: it may hang.
    "runsc": Make(
        "user-kernel",
        ("--ignore-cgroups", "--overlay2=none", "--file-access-mounts=exclusive"),
        (_DETACH,),
        96,
        True,
        "runsc",
        ("systrap", "ptrace", "kvm"),
    ),
}
OTHER: Final = Make("container", (), _PASSED, 64, False)
"""What an OCI runtime of another make is taken for: called as runc is, and no more than a container."""


@dataclass(frozen=True, slots=True)
class Program:
    """An OCI runtime on this host, of a make in ``MAKES`` or of another one. ``platform`` as in ``Make.platforms``."""

    name: str
    path: str
    make: Make
    platform: str = ""

    def facts(self) -> dict[str, str]:
        """For the record, and for ``recalled``."""
        found = {"program": self.path, "program_make": self.name}
        return found | ({"platform": self.platform} if self.platform else {})

    def tasks(self, limit: int) -> int:
        """Processes and threads of this host that may be for that limit on those of a sandbox.

        gVisor refuses more than the limit itself, but is ended where this host refuses it one: at systrap each of its
        processes is two here, and some are kept for later.
        """
        return self.make.own_tasks + (4 * limit if self.make.own_kernel else limit)

    def command(self, network: str, stage: str, ident: str, image: str = "") -> list[str]:
        """What runs the bundle at ``stage``; on from what is saved in the directory ``image``."""
        words = [self.path, *self.make.options]
        if self.make.own_kernel:
            words += [f"--network={network}"] + [f"--platform={self.platform}"] * bool(self.platform)
        verb = ["restore", *self.make.run, "--image-path", image] if image else ["run", *self.make.run]
        return [*words, "--root", f"{stage}/state", *verb, "--bundle", stage, ident]

    def asking(self, stage: str, ident: str, *words: str) -> list[str]:
        """What asks it something about the sandbox whose bundle is at ``stage``."""
        return [self.path, *self.make.options, "--root", f"{stage}/state", *words, ident]


def check_name(name: str | None) -> None:
    """Raises ``InvalidInput`` for what is neither a make's name nor an absolute path."""
    if name is not None and name not in MAKES and not os.path.isabs(name):
        raise InvalidInput(f"OCI runtime {name!r}: give the absolute path of its program, as in oci:/opt/bin/crun")


def find_program(name: str | None) -> Program | None:
    """The OCI runtime at that path or of that name, or the best container runtime there is; None without one.

    ``PROOFBOX_RUNSC`` (or the like) says where the one of a name is; else it is looked for on PATH, and where root's
    programs are. One at a path is asked what it is, so that a runsc gets what runsc needs.
    """
    found = _find(name)
    if found is None:
        return None
    named, path = found
    if named:
        return _prepared(named, path)
    told = version(path).partition(" ")[0]
    return _prepared(told if told in MAKES else "other", path)


def path_of(name: str | None) -> str | None:
    """Where ``find_program`` finds it. Runs nothing."""
    found = _find(name)
    return None if found is None else found[1]


def variable(name: str) -> str:
    """The environment variable that says where the program of that make is."""
    return f"PROOFBOX_{name.upper()}"


def recalled(facts: Mapping[str, str]) -> Program:
    """What ``Program.facts`` were of."""
    name = facts["program_make"]
    return Program(name, facts["program"], MAKES.get(name, OTHER), facts.get("platform", ""))


def _find(name: str | None) -> tuple[str, str] | None:
    """Its make, empty for one at a path, and where it is."""
    if name is not None and os.path.isabs(name):
        return ("", name) if shutil.which(name) else None
    for candidate in (name,) if name else (each for each, make in MAKES.items() if make.level == "container"):
        told = os.environ.get(variable(candidate), "")
        found = binary.find_program(told or candidate)
        if found:
            return candidate, os.path.abspath(found)
    return None


def _prepared(name: str, path: str) -> Program:
    """With the platform that the user insists on, or the first one."""
    make = MAKES.get(name, OTHER)
    asked = os.environ.get(PLATFORM, "") if make.platforms else ""
    if asked:
        make = replace(make, platforms=(asked,))
    return Program(name, path, make, next(iter(make.platforms), ""))


def version(path: str) -> str:
    """The first line of ``--version``; empty if it does not tell."""
    try:
        told = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter(told.stdout.decode("utf-8", "replace").splitlines()), "")
