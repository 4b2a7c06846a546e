"""What keeps one sandbox apart from its host, as it was found on that sandbox."""

from __future__ import annotations

import msgspec

from proofbox.model.spec import Level


class Isolation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read from outside, of the sandbox's first process; None and empty where the host cannot see, or may not look.

    own, shared, unseen   kinds of namespaces: the sandbox's own, this process's too, and those nobody let us look at
    ids                   first id inside, first id outside, how many; several where the ids come in parts
    seccomp               mode of the filter of system calls: 0 none, 2 a filter
    no_new_privs          no program that it starts gains a privilege
    capabilities          bounding set: what a program inside can have at most, by number
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
    kernel: str = ""
    host_kernel: str = ""
