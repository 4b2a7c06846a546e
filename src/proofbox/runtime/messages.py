"""Messages to the launcher and from it, as ``docs/launcher.md`` has them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from proofbox.errors import InvalidInput
from proofbox.host.cgroup import Plan
from proofbox.host.confinement import Confinement
from proofbox.host.idmap import HIGHEST, LOWEST, RANGE, Ids
from proofbox.host.names import name_files
from proofbox.host.subids import Extent
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template, targets
from proofbox.runtime.contract import Below

VERSION: Final = 1
MESSAGE_MAX: Final = 131_072
TREES_MAX: Final = 180
"""Layers and volumes of one sandbox."""
FROZEN_MAX: Final = 64
"""Frozen layers of others below one sandbox."""

INODE_RESERVE: Final = 64
"""Inodes that the launcher itself uses in the writable layer, with one more for each frozen layer below."""


class Kind(IntEnum):
    """First byte of a message to the launcher."""

    SETUP = 1
    LAUNCH = 2


class Setup(IntEnum):
    """Tags of SETUP."""

    VERSION = 1
    CLIENT = 2
    UID = 3
    GID = 4
    FULL_IDS = 5
    CAPABILITIES = 6
    FILTER = 7
    MASK = 8
    READONLY = 9
    LEFTOVER = 10
    ID_FIRST = 11
    ID_LAST = 12
    GROUP_ROOT = 13
    UID_MAP = 14
    GID_MAP = 15
    ROOT_OVERLAYS = 16
    ID_LOCKS = 17


class Launch(IntEnum):
    """Tags of LAUNCH."""

    ID = 1
    HOSTNAME = 2
    HOST_NETWORK = 3
    DISK = 4
    INODES = 5
    PROCESSES = 6
    LAYER = 7
    VOLUME = 8
    GROUP = 9
    GROUP_WRITE = 10
    FROZEN = 11
    MACHINE_ID = 12
    BOOT_ID = 13


KILL: Final = b"K"
DESTROY: Final = b"D"


@dataclass(frozen=True, slots=True)
class Ready:
    """The sandbox stands; its guest waits. ``pid`` as the client sees it; ``id_base``: its root's id outside where it
    has ids of its own, a number of its own where all share the same ones, 0 with one id.
    """

    pid: int
    id_base: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A step failed: its name, what it was about, the kernel's reason."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """All processes are gone. ``status`` as of wait(2); ``removed``: nothing else of it is left either."""

    status: int
    removed: bool


Report = Ready | Failed | End


def encode_setup(
    client: int,
    ids: Ids,
    confinement: Confinement,
    filter_program: bytes,
    leftovers: Iterable[str],
    group_roots: Iterable[str] = (),
    *,
    root_overlays: bool = False,
    id_locks: Path | None = None,
) -> bytes:
    """SETUP: what is the same for every sandbox of this launcher. ``root_overlays`` takes a full range of ids;
    ``id_locks`` is as in ``host.idranges``.
    """
    parts = [
        bytes([Kind.SETUP]),
        encode_number(Setup.VERSION, VERSION),
        encode_number(Setup.CLIENT, client),
        encode_number(Setup.UID, ids.uid),
        encode_number(Setup.GID, ids.gid),
        encode_number(Setup.FULL_IDS, ids.full),
        encode_number(Setup.ID_FIRST, LOWEST if ids.full else 1),
        encode_number(Setup.ID_LAST, HIGHEST if ids.full else RANGE - 1),
        encode_number(Setup.CAPABILITIES, confinement.capability_mask()),
        encode_field(Setup.FILTER, filter_program),
    ]
    if root_overlays:
        parts.append(encode_number(Setup.ROOT_OVERLAYS, 1))
    if id_locks is not None:
        parts.append(_text(Setup.ID_LOCKS, str(id_locks)))
    nested = None if ids.full else ids.map_of(0)
    if nested is not None:
        parts.append(_text(Setup.UID_MAP, _map_lines(nested.uids)))
        parts.append(_text(Setup.GID_MAP, _map_lines(nested.gids)))
    parts += (_text(Setup.MASK, path) for path in confinement.masked)
    parts += (_text(Setup.READONLY, path) for path in confinement.readonly)
    parts += (_text(Setup.LEFTOVER, path) for path in leftovers)
    parts += (_text(Setup.GROUP_ROOT, path) for path in group_roots)
    return _whole(parts)


def encode_launch(
    spec: SandboxSpec,
    template: Template,
    plan: Plan,
    *,
    processes: int | None,
    shown: Sequence[tuple[str, str]] = (),
    below: Sequence[Below] = (),
) -> bytes:
    """LAUNCH: one sandbox. ``processes`` only where no cgroup limits them; ``shown`` as volumes, but theirs win.

    The mounts in ``below`` come with the message, in their order.
    """
    limits = spec.limits
    parts = [bytes([Kind.LAUNCH]), _text(Launch.ID, spec.id), _text(Launch.HOSTNAME, spec.hostname)]
    if spec.machine_id and spec.boot_id:
        parts += (_text(Launch.MACHINE_ID, spec.machine_id), _text(Launch.BOOT_ID, spec.boot_id))
    if spec.network == "host":
        parts.append(encode_number(Launch.HOST_NETWORK, 1))
    if limits.disk is not None:
        parts.append(encode_number(Launch.DISK, limits.disk))
    if limits.inodes is not None:
        parts.append(encode_number(Launch.INODES, limits.inodes + INODE_RESERVE + len(below)))
    if processes is not None:
        parts.append(encode_number(Launch.PROCESSES, processes))
    volumes = [(volume.target, volume.source) for volume in spec.volumes]
    taken = {target for target, _ in volumes}
    if spec.network == "host":
        volumes += name_files(taken)
    volumes += [each for each in shown if each[0] not in taken]
    stacked = [*_stacked(template, below), *((Launch.LAYER, each.target, each.source) for each in template.layers)]
    frozen = sum(each.mount >= 0 for each in below)
    trees = sum(tag == Launch.LAYER for tag, _, _ in stacked) + len(volumes)
    if trees > TREES_MAX or frozen > FROZEN_MAX:
        raise InvalidInput(
            f"sandbox {spec.id}: {trees} layers and volumes, and {frozen} layers of other sandboxes; "
            f"the native runtime mounts {TREES_MAX} and {FROZEN_MAX} at most"
        )
    parts += (_pair(*each) for each in stacked)
    parts += (_pair(Launch.VOLUME, target, source) for target, source in volumes)
    parts += (_text(Launch.GROUP, directory) for directory in plan.directories)
    parts += (_pair(Launch.GROUP_WRITE, path, value) for path, value in plan.values)
    return _whole(parts)


def _stacked(template: Template, below: Sequence[Below]) -> Iterator[tuple[Launch, str, str]]:
    """The parts of each layer by target, the first layer on top."""
    mounts = 0
    for each in below:
        for number, target in enumerate(targets(template)):
            if each.mount >= 0:
                yield Launch.FROZEN, target, f"{mounts}/{number}"
            else:
                yield Launch.LAYER, target, f"{each.directory}/{number}"
        mounts += each.mount >= 0


def decode_report(message: bytes) -> Report:
    """A message of the launcher, or of a sandbox that is being made (which runs our code alone until it is ready)."""
    tag, rest = message[:1], message[1:]
    if tag == b"R" and len(rest) == 8:
        return Ready(*struct.unpack("<II", rest))
    if tag == b"F":
        return Failed(rest.decode("utf-8", "replace"))
    if tag in (b"E", b"D") and len(rest) == 4:
        return End(struct.unpack("<i", rest)[0], removed=tag == b"D")
    raise ValueError(f"the launcher sent {message[:40]!r}")


def _map_lines(extents: Iterable[Extent]) -> str:
    """Each of these ids as itself, in the form of /proc/PID/uid_map."""
    return "\n".join(f"{each.first} {each.first} {each.count}" for each in extents)


def encode_field(tag: int, value: bytes) -> bytes:
    """One item of a message."""
    return struct.pack("<BI", tag, len(value)) + value + b"\0"


def encode_number(tag: int, value: int) -> bytes:
    """A number as an item of a message."""
    return encode_field(tag, struct.pack("<Q", value))


def _text(tag: int, value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise InvalidInput(f"{value!r} has a NUL in it")
    return encode_field(tag, encoded)


def _pair(tag: int, first: str, second: str) -> bytes:
    if "\0" in first or "\0" in second:
        raise InvalidInput(f"{first!r} or {second!r} has a NUL in it")
    return encode_field(tag, f"{first}\0{second}".encode("utf-8", "surrogateescape"))


def _whole(parts: list[bytes]) -> bytes:
    message = b"".join(parts)
    if len(message) > MESSAGE_MAX:
        raise InvalidInput(f"a message of {len(message)} bytes to the launcher; {MESSAGE_MAX} are the limit")
    return message
