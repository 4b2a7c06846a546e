"""The ways to dirty a sandbox: the names are those of ``dirty.c``, the parts are where the fingerprint tells it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from proofbox.model.fingerprint import PartName
from proofbox.model.outcome import Exited
from proofbox.sandbox.api import Sandbox


@dataclass(frozen=True, slots=True)
class Way:
    """``parts`` differ in the fingerprint of the sandbox that it was done in; none if it is refused there.

    ``users`` where it needs several users inside; ``unseen``: it leaves nothing for anybody to see.
    """

    name: str
    parts: tuple[PartName, ...] = ()
    users: bool = False
    unseen: bool = False
    only_at: str = ""
    """It is done at this runtime and refused at the others."""


FILES = tuple(
    Way(name, ("files",))
    for name in (
        "file in /etc",
        "file in /usr",
        "file in /var",
        "file in /tmp",
        "file in /dev",
        "file in /dev/shm",
        "file in /root",
        "file in a home",
        "file in /run",
        "file in the root",
        "name with a newline",
        "crontab",
        "at job",
        "preloaded library",
        "linker cache",
        "time zone",
        "local time",
        "locale archive",
        "environment file",
        "profile",
        "bytecode",
        "start of every python",
        "pip cache",
        "apt lists",
        "shell history",
        "ssh keys",
        "git configuration",
        "resolver",
        "host names",
        "message of the day",
        "core file",
        "deep directories",
        "hidden attribute",
        "file capability",
        "access list",
        "access list of what is to be made",
        "mode of a template file",
        "times of a template file",
        "content of a template file",
        "deleted template file",
        "moved template directory",
        "replaced template directory",
        "second link to a template file",
        "template file made a link",
        "fifo",
        "set-user-id file",
        "file with a hole",
        "posix shared memory",
        "posix semaphore",
    )
)
OBJECTS = (
    Way("deleted but open file", ("files", "processes")),
    Way("owner of a template file", ("files",), users=True),
    Way("account", ("files", "users")),
    Way("tcp listener", ("sockets", "processes")),
    Way("tcp listener on ipv6", ("sockets", "processes")),
    Way("udp socket", ("sockets", "processes")),
    Way("tcp connection in time-wait", ("sockets",)),
    Way("unix socket", ("files", "sockets", "processes")),
    Way("abstract unix socket", ("sockets", "processes")),
    Way("descriptor in a message", ("files", "processes")),
    Way("multicast group", ("sockets", "processes")),
    Way("system v shared memory", ("ipc",)),
    Way("removed shared memory in use", ("ipc", "processes")),
    Way("system v semaphores", ("ipc",)),
    Way("system v message queue", ("ipc",)),
    Way("posix message queue", ("ipc", "files")),
    Way("memory file", ("processes",)),
    Way("terminal left open", ("files", "processes")),
    Way("daemon", ("processes",)),
    Way("stopped process", ("processes",)),
    Way("timer descriptor", ("timers", "processes")),
    Way("posix timer", ("timers", "processes")),
    Way("alarm", ("processes",)),
    Way("pending signal", ("processes",)),
    Way("inotify watch", ("processes",)),
    Way("lock on a template file", ("processes",)),
    Way("locked memory", ("processes",)),
    Way("mapping of a template file", ("processes",)),
    Way("oom score of a process", ("processes",)),
    Way("limit of the first process", ("limits",)),
    Way("priority of the first process", ("limits",)),
    Way("scheduling of the first process", ("limits",)),
    Way("io priority of the first process", ("limits",)),
    *([Way("processors of the first process", ("limits",))] if len(os.sched_getaffinity(0)) > 1 else []),
    Way("oom score of the first process", ("limits",), only_at="crun"),
    Way("limits and umask of a process", unseen=True),
    Way("core size", unseen=True),
)
REFUSED = tuple(
    Way(name)
    for name in (
        "key of the session",
        "key of the user",
        "key of the user's session",
        "persistent keyring",
        "lease on a template file",
        "file that nobody can change",
        "whiteout made by hand",
        "setting of memory",
        "setting of namespaces",
        "neighbour of the network",
        "packet filter",
        "clock",
        "core pattern",
        "setting of ipc",
        "setting of the network",
        "host name",
        "domain name",
        "loopback address",
        "route",
        "loopback down",
        "mount",
        "remount of /proc/sys",
        "namespaces",
        "control group",
        "limit of a control group",
    )
)


ACROSS = (
    *FILES[: FILES.index(Way("deep directories", ("files",))) : 4],
    Way("locale archive", ("files",)),
    *FILES[FILES.index(Way("deep directories", ("files",))) :],
    *OBJECTS,
    *REFUSED,
)
"""What is tried across forks and pools: all but files that differ from others in their paths alone."""


async def is_there(box: Sandbox, way: Way) -> bool:
    """A direct look, without the fingerprint."""
    found = await box.run(["dirty", "look", way.name])
    assert found.outcome in (Exited(0), Exited(1)), found
    return found.ok
