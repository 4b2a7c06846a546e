"""What was seen of a sandbox, from outside, while the clock of a limit ran. Seconds and bytes; None is "not known".

It is stored beside the verdict, so that whoever doubts a cause sees what it was drawn from (``proofbox.model.blame``).
"""

from __future__ import annotations

import msgspec


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """The host over the same interval.

    cpus       processors that Proofbox may use
    others     CPU seconds that everything else on them used, the hypervisor's other guests (steal) included
    steal      of that, what the hypervisor gave to other guests
    throttled  CPU seconds for which a quota around Proofbox itself (its container) held everything back
    cpu, io, memory   share of the interval in which some task of the host waited for it (PSI)
    """

    cpus: int
    others: float | None = None
    steal: float | None = None
    throttled: float | None = None
    cpu: float | None = None
    io: float | None = None
    memory: float | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of one command, or of one candidate's calls.

    elapsed     seconds from the start of the clock to the limit, as they passed
    allowed     seconds of the limit, where the clock gave back what the host took; else it is ``elapsed``
    seen        of these, what lies between the first and the last look, and counted
    looks       how often was looked
    lag         seconds by which our own process came late to its looks: how late it was for everything else
    cpu         CPU seconds used
    wanted      CPU seconds that its threads used or waited for, no more than its share allows
    wanting     seconds in which at least one of them used or waited for a processor
    waited      CPU seconds that its threads waited on run queues, all added up (its own competition included)
    waits       seconds in which some process of the sandbox waited (its group's PSI; ended processes are in it too)
    share       processors' worth that it may use: its own limit, or the host's processors
    throttled   CPU seconds for which its own limit held it back
    disk_wait   seconds in which none ran and one slept uninterruptibly in a file system or its device
    stuck       the same, in another place of the kernel, or in one that it does not tell
    moved       bytes that its processes read from and wrote to disks
    still       seconds at the end in which none of its threads ran or wanted to
    churn       looks between which threads ended, so that their waiting is known by sampling only
    states      threads at the last look: running, disk, stopped, zombie, or what they were blocked in (read, futex)
    blocked     the same with the kernel's own words: "comm: syscall number, place in the kernel", for a person
    processes   most processes seen at once
    served      the host had to answer it: its own lateness counts
    missing     what could not be known, and why
    """

    elapsed: float
    allowed: float | None = None
    seen: float = 0.0
    looks: int = 0
    lag: float = 0.0
    cpu: float | None = None
    cpu_user: float | None = None
    cpu_system: float | None = None
    wanted: float | None = None
    wanting: float = 0.0
    waited: float = 0.0
    waits: float | None = None
    share: float = 1.0
    throttled: float | None = None
    disk_wait: float = 0.0
    stuck: float = 0.0
    moved: int | None = None
    still: float = 0.0
    churn: int = 0
    states: dict[str, int] = {}
    blocked: tuple[str, ...] = ()
    processes: int = 0
    process_denials: int | None = None
    memory_peak: int | None = None
    oom_kills: int | None = None
    disk: int | None = None
    host: Pressure | None = None
    served: bool = False
    missing: tuple[str, ...] = ()
