"""What keeps one sandbox apart from its host, as it was found on that sandbox."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from proofbox.model.ids import digest_of
from proofbox.model.spec import LEVELS, Level


class Isolation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read from outside; None and empty where the host cannot see, or may not look.

    It is that of the sandbox's first process. Where the sandbox has a kernel of its own, it is that of the process of
    this host which that kernel is (gVisor's, QEMU's): what somebody has who has broken it.

    own, shared, unseen   kinds of namespaces: the sandbox's own, this process's too, and those nobody let us look at
    ids                   first id inside, first id outside, how many; several where the ids come in parts; the one that
                          it is where it has this host's and cannot become another
    seccomp               mode of the filter of system calls: 0 none, 2 a filter
    no_new_privs          no program that it starts gains a privilege
    capabilities          bounding set: what a program inside can have at most, by number
    platform              how a kernel of the sandbox's own gets at its processes: gVisor's systrap, ptrace or kvm;
                          QEMU's kvm or tcg
    kernel                what its guest calls the machine and kernel that it sees: a claim from inside, no evidence
    host_kernel           this host's
    """

    runtime: str
    level: Level
    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    ids: tuple[tuple[int, int, int], ...] = ()
    seccomp: int | None = None
    no_new_privs: bool | None = None
    capabilities: tuple[int, ...] | None = None
    platform: str = ""
    kernel: str = ""
    host_kernel: str = ""

    def alike(self) -> Isolation:
        """The same of all sandboxes that are kept apart alike: without the ids, of which each may have others."""
        return msgspec.structs.replace(self, ids=())

    def digest(self) -> str:
        """Of what is alike."""
        return _digest(self.alike())

    def weaker_than(self, other: Isolation) -> tuple[str, ...]:
        """In what this keeps apart less than the other does, a sentence each. What either could not see counts not."""
        less = []
        if LEVELS.index(self.level) < LEVELS.index(other.level):
            less.append(f"its level is {self.level!r}, not {other.level!r}")
        if lost := sorted(set(other.own) & set(self.shared)):
            less.append(f"namespaces of its own no more: {', '.join(lost)}")
        if (self.seccomp or 0) < (other.seccomp or 0) and self.seccomp is not None:
            less.append("no filter of system calls any more")
        if self.no_new_privs is False and other.no_new_privs:
            less.append("programs can gain privileges")
        more = set() if other.capabilities is None else set(self.capabilities or ()) - set(other.capabilities)
        if more:
            less.append(f"more capabilities: {', '.join(map(str, sorted(more)))}")
        if _one(self) and other.ids and not _one(other):
            less.append("one id inside, the user's own, instead of several")
        return tuple(less)


@lru_cache
def _digest(alike: Isolation) -> str:
    return digest_of(alike)


def _one(isolation: Isolation) -> bool:
    return sum(count for _, _, count in isolation.ids) == 1
