"""What the commands of a sandbox get where their caller is silent."""

from __future__ import annotations

import posixpath
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from proofbox.errors import Refused
from proofbox.model.limits import Limits
from proofbox.model.outcome import Exited, Outcome, Signaled
from proofbox.sandbox.given import as_env, as_path, as_user, is_root

KILLED: Final = (Signaled(signal.SIGKILL), Exited(128 + signal.SIGKILL))
"""The second one is how a shell tells it of its child."""
KILLED_AT_GVISOR: Final = (*KILLED, Exited(1))
"""The kernel ends the process of this host that a program runs in, or else gVisor itself. gVisor calls it an exit."""


@dataclass(slots=True)
class Setting:
    """What a command gets where its caller is silent. ``users`` False: there is one user, and nobody is switched to."""

    limits: Limits
    env: dict[bytes, bytes]
    cwd: bytes
    user: bytes
    users: bool
    counts_cpu: bool = False
    """CPU time of a single command can be limited here."""
    killed: tuple[Outcome, ...] = KILLED
    """How a command ends that the kernel ended for want of memory, if it did: its counter says whether."""
    rlimits: tuple[tuple[int, int, int], ...] = ()
    fields: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = tuple([b"%b=%b" % item for item in self.env.items()])
        asked = ((resource.RLIMIT_NOFILE, self.limits.open_files), (resource.RLIMIT_AS, self.limits.process_memory))
        self.rlimits = tuple([(int(which), value, value) for which, value in asked if value is not None])

    def env_with(self, env: Mapping[str, str] | None) -> tuple[bytes, ...]:
        """The whole environment of a command, as ``NAME=value``."""
        if not env:
            return self.fields
        return tuple([b"%b=%b" % item for item in {**self.env, **as_env(env)}.items()])

    def rlimits_with(self, cpu_time: float | None) -> tuple[tuple[int, int, int], ...]:
        """With a limit on the CPU time of a command. Its clock, and the sandbox's, are kept by this process; should it
        hang, the kernel ends each process.
        """
        asked = [each for each in (self.limits.cpu_time, cpu_time) if each is not None]
        if not asked:
            return self.rlimits
        most = ceil(min(asked)) + 1  # the kernel counts it by ticks here: early, or late
        return (*self.rlimits, (int(resource.RLIMIT_CPU), most, most + 1))

    def cwd_with(self, cwd: str | bytes | None) -> bytes:
        """A relative one starts at the sandbox's own."""
        return self.cwd if cwd is None else posixpath.join(self.cwd, as_path(cwd, "cwd"))

    def user_with(self, user: str | None) -> bytes | None:
        """None where nobody is to be switched to. Raises ``Refused`` for a user that this host cannot offer."""
        wanted = self.user if user is None else as_user(user)
        if self.users:
            return wanted
        if not is_root(wanted):
            raise Refused(
                f"user {wanted.decode('utf-8', 'replace')!r}",
                ("sandboxes of this host have root only: it has no range of subordinate ids (see `proofbox doctor`)",),
            )
        return None
