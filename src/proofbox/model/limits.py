"""Limits of a sandbox and of a command. ``None`` is no limit. Bytes and seconds."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

LimitKind = Literal[
    "memory",
    "memory_reserve",
    "process_memory",
    "processes",
    "cpus",
    "cpu_time",
    "disk",
    "inodes",
    "open_files",
    "wall",
    "idle",
    "command_wall",
    "command_cpu_time",
    "output",
]
PhaseKind = Literal["setup_wall", "agent_wall", "turn_wall", "verify_wall", "trial_wall"]
FiredKind = Literal[LimitKind, PhaseKind]
"""What can fire: a limit of a sandbox or a command, or of a part of a trial."""
LIMIT_KINDS: Final[tuple[LimitKind, ...]] = get_args(LimitKind)

MIB: Final = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox may use at most. Each that is set is enforced, or the sandbox is refused.

    memory          bytes of all its processes, page cache of its files and swap together; more is killed for
    memory_reserve  bytes of these that the kernel leaves it while others have more than theirs; never a reason to kill
    process_memory  bytes of address space of each single process (what a host without cgroups can enforce)
    processes       processes and threads alive at once, the guest's own few not counted
    cpus            processors' worth of CPU time per second (2.5 is two and a half; three are seen inside)
    cpu_time        CPU seconds of the whole sandbox, its ended processes included
    disk            bytes in the writable layer
    inodes          files, directories and links in the writable layer
    open_files      file descriptors of one process
    wall            seconds from the sandbox's start until it is ended, whatever it does
    idle            seconds in which no command runs and nothing is asked of it, after which it is ended
    command_wall    seconds for one command, where the command has no deadline of its own
    command_cpu_time  CPU seconds of one command and all that it starts, where it has no limit of its own
    output          bytes that one command may write to stdout and stderr together before it is ended
    """

    memory: int | None = None
    memory_reserve: int | None = None
    process_memory: int | None = None
    processes: int | None = None
    cpus: float | None = None
    cpu_time: float | None = None
    disk: int | None = None
    inodes: int | None = None
    open_files: int | None = None
    wall: float | None = None
    idle: float | None = None
    command_wall: float | None = None
    command_cpu_time: float | None = None
    output: int | None = None

    def asked(self) -> tuple[LimitKind, ...]:
        """The kinds that are set."""
        return tuple(kind for kind in LIMIT_KINDS if getattr(self, kind) is not None)

    def over(self, base: Limits) -> Limits:
        """These limits, with ``base`` where this one is silent."""
        mine = {kind: getattr(self, kind) for kind in self.asked()}
        return msgspec.structs.replace(base, **mine)


class Walls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds for the parts of one attempt of a trial; None is no limit. The making of sandboxes counts nowhere.

    setup_wall   for the commands that prepare the agent's sandbox: reached, the attempt is an infrastructure failure
    agent_wall   for the agent, until it hands in its candidate: reached, the trial ends by this limit
    turn_wall    for one turn of an agent that acts in a sandbox: its decision, and the commands of it. Reached while
                 these run, they are ended, and the agent is told; reached while it decides, the trial ends by it
    verify_wall  for the verifier: reached, the attempt is an infrastructure failure, and is made again
    trial_wall   for all of it together, whoever is at work when it is reached
    """

    setup_wall: float | None = None
    agent_wall: float | None = None
    turn_wall: float | None = None
    verify_wall: float | None = None
    trial_wall: float | None = None

    def over(self, base: Walls) -> Walls:
        """These, with ``base`` where this one is silent."""
        return msgspec.structs.replace(base, **self.asked())

    def asked(self) -> dict[str, float]:
        """Those that are set."""
        return {kind: value for kind, value in msgspec.structs.asdict(self).items() if value is not None}


DEFAULTS: Final = Limits(
    memory=1024 * MIB,
    memory_reserve=None,
    process_memory=None,
    processes=256,
    cpus=None,
    cpu_time=None,
    disk=1024 * MIB,
    inodes=200_000,
    open_files=1024,
    wall=3600.0,
    idle=None,
    command_wall=None,
    command_cpu_time=None,
    output=None,
)
"""What a sandbox gets where the caller is silent, as far as the host can enforce it; printed and recorded."""

WITHOUT_CGROUPS: Final = Limits(process_memory=1024 * MIB)
"""Stands in for a silent ``memory`` where no cgroup can be had. A ``memory`` that was asked for is refused there."""
