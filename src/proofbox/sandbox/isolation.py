"""How each sandbox is kept apart: looked at from outside, held against what its level promises, told to who watches.

Who runs an attempt watches: every sandbox that is handed out while it does, whoever asks for it, was looked at and is
told. Without anybody who watches the first one of each host and all of a pool are looked at, and the others are not: it
takes a third of a millisecond.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from proofbox.errors import CreateFailed
from proofbox.host.apart import NAMESPACES, first_of, read_apart
from proofbox.host.confinement import confinement
from proofbox.model.isolation import Isolation
from proofbox.model.spec import Network
from proofbox.sandbox.lifecycle import Life

if TYPE_CHECKING:
    from proofbox.sandbox.api import Sandbox
    from proofbox.sandbox.host import Host

AROUND_A_KERNEL: Final = ("ipc", "mnt", "net", "pid", "uts")
"""Namespaces that the process of a kernel must have. It may be a user of this host who owns nothing, in our own one."""

Watcher = Callable[[str, Isolation], object]
"""Learns of a sandbox, by its id, and of what keeps it apart. It must be quick, and must not raise."""

_watcher: Final[ContextVar[Watcher | None]] = ContextVar("proofbox_watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside, ``watcher`` learns of every sandbox before its user has it; also in tasks that are started there."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watching() -> bool:
    """Somebody does, here."""
    return _watcher.get() is not None


def tell(life: Life) -> None:
    """Tells who watches, if anybody does, of one that was looked at."""
    watcher = _watcher.get()
    if watcher is not None and life.isolation is not None:
        watcher(life.spec.id, life.isolation)


def tell_of_use(box: Sandbox) -> None:
    """Tells who watches of one that was opened elsewhere, and is used here too."""
    tell(box._life)


def check(life: Life, host: Host) -> None:
    """Looks at a live one and keeps what was found. Raises ``CreateFailed`` where it is less than its level promises:
    whoever holds it has to end it.
    """
    life.isolation = found = look(life, host)
    if less := lacking(found, life.spec.network):
        raise CreateFailed(
            f"sandbox {life.spec.id} is kept apart less than {host.level!r} promises: {less}", "isolation"
        )


def look(life: Life, host: Host) -> Isolation:
    """What keeps it apart from this host, found on the process that stands for it there."""
    apart = read_apart(_process_of(life))
    return Isolation(
        runtime=host.runtime_name,
        level=host.level,
        own=apart.own,
        shared=apart.shared,
        unseen=apart.unseen,
        ids=apart.ids,
        seccomp=apart.seccomp,
        no_new_privs=apart.no_new_privs,
        capabilities=apart.capabilities,
        platform=host.probe.facts.get("platform", ""),
        kernel=life.channel.machine,
        host_kernel=f"{platform.machine()} {platform.release()}",
    )


def _process_of(life: Life) -> int:
    """What stands for it on this host: its first process, or the one that its kernel is; 0 where that is not seen."""
    if life.handle is None or life.state != "live":
        return 0
    if not life.shares_kernel:
        return life.kernels.kernel_process(life.handle) if life.kernels is not None else 0
    observed = life.observe()
    return 0 if observed is None else first_of(observed[0])


def lacking(found: Isolation, network: Network) -> str:
    """What its level promises and is seen not to be there; what nobody may look at is not held against it."""
    if found.level == "none":
        return ""
    container = found.level == "container"
    wanted = NAMESPACES if container else AROUND_A_KERNEL
    less = [
        f"the {kind} namespace is this process's own"
        for kind in found.shared
        if kind in wanted and (kind, network) != ("net", "host")
    ]
    if found.seccomp not in (None, 2):
        less.append("no filter of system calls")
    if found.no_new_privs is False:
        less.append("its programs can gain privileges")
    # What a kernel's process may do in a user namespace of its own is its own affair.
    allowed = confinement().capabilities.values() if container or "user" in found.shared else range(64)
    if more := [number for number in found.capabilities or () if number not in allowed]:
        less.append(f"capabilities {', '.join(map(str, more))} are in reach")
    return "; ".join(less)
