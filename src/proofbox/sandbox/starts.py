"""Whether a sandbox that nothing has run in is what others of its kind were: looked at before it is handed out.

What a start should be is taken from the first sandbox of a kind in this process, before anything ran in it; and what
holds for every start (no process, no socket, no IPC object, volumes that are read-only) is asked of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

from proofbox.errors import ProtocolViolation, UncleanStart
from proofbox.host import unclean
from proofbox.model.fingerprint import Fingerprint, PartName, difference, fingerprint_of
from proofbox.model.limits import Limits
from proofbox.model.spec import Network, SandboxSpec, Volume
from proofbox.model.template import Layer
from proofbox.wire.fingerprint import decode_lines
from proofbox.wire.frames import WireError

KINDS: Final = 256
"""Kinds of sandboxes whose start is remembered, the latest ones."""
FULL_KINDS: Final = 4
"""As ``KINDS``, of full fingerprints: one names every file of a template."""
EMPTY: Final[tuple[PartName, ...]] = ("processes", "sockets", "timers")
"""Parts that no start has anything in."""

T = TypeVar("T")
_Kind = tuple[str, Limits, Network, str, tuple[Volume, ...], bool, tuple[Layer, ...], int]


@dataclass(slots=True)
class Starts:
    """Of one host. Counters only grow. What was unclean is put on the lasting record too (``host/unclean.py``)."""

    runtime: str = ""
    """The name for the record; without one nothing is put there."""
    checked: int = 0
    """Starts that were looked at."""
    unclean: int = 0
    """Those of them that were not clean: their sandboxes were ended and handed to nobody."""
    _cheap: dict[_Kind, tuple[bytes, object]] = field(default_factory=dict)
    _full: dict[_Kind, tuple[Fingerprint, object]] = field(default_factory=dict)
    """With the origin, so that no other one can have its number while it is remembered."""

    def check(self, spec: SandboxSpec, told: bytes, layers: tuple[Layer, ...] = (), origin: object = None) -> None:
        """Looks at the lines that came with the guest's HELLO. Some microseconds where they are as ever.

        ``layers`` are the template's, ``origin`` is what lies between the sandbox and its template, which only those
        that were forked with it share.

        Raises ``UncleanStart``, and ``ProtocolViolation`` for what are no lines; the caller ends the sandbox then.
        """
        self.checked += 1
        kind = _kind(spec, layers, origin)
        expected, _ = self._cheap.get(kind, (None, None))
        if expected == told:
            return
        try:
            found = fingerprint_of(decode_lines(told), full=False)
            wanted = found if expected is None else fingerprint_of(decode_lines(expected), full=False)
        except WireError as error:
            self._count(spec, (str(error),))
            raise ProtocolViolation(f"sandbox {spec.id}: {error}; it was ended") from error
        wrong = _never(found, spec) + difference(_compared(wanted, spec), _compared(found, spec))
        if wrong:
            raise self._refused(spec, wrong)
        _remember(self._cheap, kind, (told, origin), KINDS)

    def check_full(
        self, spec: SandboxSpec, found: Fingerprint, layers: tuple[Layer, ...] = (), origin: object = None
    ) -> None:
        """As ``check``, with a full fingerprint."""
        kind = _kind(spec, layers, origin)
        wrong = _never(found, spec)
        found = _compared(found, spec)
        expected, _ = self._full.get(kind, (found, None))
        wrong += difference(expected, found)
        if wrong:
            raise self._refused(spec, wrong)
        _remember(self._full, kind, (found, origin), FULL_KINDS)

    def _refused(self, spec: SandboxSpec, wrong: tuple[str, ...]) -> UncleanStart:
        self._count(spec, wrong)
        named = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        return UncleanStart(
            f"sandbox {spec.id} is not what others of template {spec.template} are before anything runs in them, "
            f"and was ended: {named} (if this host or the template's files were changed on purpose, start this "
            "process anew)",
            wrong,
        )

    def _count(self, spec: SandboxSpec, wrong: tuple[str, ...]) -> None:
        self.unclean += 1
        if self.runtime:
            unclean.note(self.runtime, spec.template, wrong)


def _kind(spec: SandboxSpec, layers: tuple[Layer, ...], origin: object) -> _Kind:
    own = bool(spec.machine_id)
    return spec.template, spec.limits, spec.network, spec.hostname, spec.volumes, own, layers, id(origin)


def _compared(found: Fingerprint, spec: SandboxSpec) -> Fingerprint:
    """Without what can differ between two clean starts: keys, which the kernel counts together where two sandboxes have
    come to have the same ids outside, and what the host has mounted below a volume by now.
    """
    lines: dict[PartName, tuple[str, ...]] = {part.name: part.lines for part in found.parts if part.name != "keys"}
    below = tuple(f"{_escaped(volume.target)}/" for volume in spec.volumes)
    lines["mounts"] = tuple(line for line in lines["mounts"] if not below or not line.startswith(below))
    return fingerprint_of(lines, full=found.full)


def _never(found: Fingerprint, spec: SandboxSpec) -> tuple[str, ...]:
    """What no start may have, whatever the first one had."""
    wrong = [f"{name}: + {line}" for name in EMPTY for line in found.part(name).lines]
    wrong += [f"ipc: + {line}" for line in found.part("ipc").lines if _is_object(line)]
    mounts = [line.split(" ") for line in found.part("mounts").lines]
    for volume in spec.volumes:
        target = _escaped(volume.target)
        flags = [words[1] for words in mounts if words[0] == target or words[0].startswith(f"{target}/")]
        if not flags or any("ro" not in each.split(",") for each in flags):
            wrong.append(
                f"mounts: volume {volume.target} is not mounted read-only ({', '.join(flags) or 'not at all'})"
            )
    return tuple(wrong)


def _is_object(line: str) -> bool:
    """Of the lines about IPC, one that names an object or counts some; the others are settings."""
    if line.startswith("System V"):
        return not line.endswith(" 0")
    return line.partition(" ")[0] in ("message", "shm", "sem", "msg")


def _escaped(path: str) -> str:
    """As the kernel writes a path in mountinfo."""
    return path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")


def _remember(known: dict[_Kind, T], kind: _Kind, value: T, most: int) -> None:
    known[kind] = value
    while len(known) > most:
        del known[next(iter(known))]
