"""What sandboxes wrote over their templates: held by descriptors after they have ended, and stacked below others.

A sandbox's writable layer is a directory of a file system in memory that no mount table of this host shows. A
descriptor of a detached mount of it keeps it alive; the last one that is closed is its end, so that a killed process
leaves nothing. In it lies one directory for each target of the sandbox's template: ``0`` for "/", then the others in
their order.
"""

from __future__ import annotations

import logging
import os
import platform
import queue
import socket
import struct
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from typing import Final, Literal, Protocol, Self

from proofbox.errors import CreateFailed
from proofbox.host.idmap import Ids, find_ids
from proofbox.kit.binary import guest_path
from proofbox.kit.forked import OfProcess

log = logging.getLogger("proofbox.host")

ANSWER_S: Final = 20.0
MAPS_TMPFS: Final = (6, 3)
"""The first Linux whose file system in memory can be mounted with its ids mapped."""
NO_MARKS: Final = (
    "files in memory take no user attributes before Linux 6.6: inside, a directory of the template or of a parent that "
    "is not empty cannot be removed, nor one made in place of what was removed (EIO); "
    "both work with a newer kernel, and as root at native, crun and runc"
)
"""Where neither ``takes_marks()`` nor ``marked_by_root()``."""
COPIES_MOST: Final = 200
"""Descriptors in one answer of the keeper."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a copy of a layer does not have: sockets, and attributes that the target's file system does not take."""

    sockets: int = 0
    attributes: int = 0

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(self.sockets + other.sockets, self.attributes + other.attributes)


class Released(Protocol):
    """What somebody holds until he lets it go."""

    def release(self) -> None: ...


@dataclass(slots=True, eq=False)
class Held:
    """What is let go when all who ``hold`` it have let go, its maker among them."""

    _users: int = field(default=1, init=False)

    def hold(self) -> Self:
        """One more user; itself."""
        self._users += 1
        return self

    def release(self) -> None:
        """One user less. Returns at once; what the last one lets go is removed in the background."""
        self._users -= 1
        if not self._users:
            self._let_go()

    @abstractmethod
    def _let_go(self) -> None: ...


@dataclass(slots=True, eq=False)
class Written(Held):
    """One sandbox's layer, frozen, or a copy of a live one's in memory, which is free when it is let go.

    ``base`` is what the owners in it count from, as this process, or root of its user namespace, sees them.
    """

    descriptor: int
    base: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    flat: Released | None = None
    """One layer that holds what this and all below it do, let go with it."""
    _slot: tuple[Keeper, int] | None = None
    _attaching: threading.Lock = field(default_factory=threading.Lock)

    def _let_go(self) -> None:
        if self.flat is not None:
            self.flat.release()
        if self._slot is not None:
            in_background(partial(self._slot[0].drop, self._slot[1]))
        discard(self.descriptor)

    def attach(self) -> tuple[Keeper, int]:
        """Where copies of its mount come from. Blocks shortly. Raises ``CreateFailed``."""
        with self._attaching:
            if self._slot is None:
                kept = keeper()
                self._slot = kept, kept.attach(self.descriptor)
            return self._slot


class Keeper:
    """The process that holds frozen layers attached (guest/layers.h says why). Calls block, from any thread."""

    def __init__(self) -> None:
        """Starts it, within some milliseconds. Raises ``CreateFailed``, ``Refused`` without a guest binary."""
        self.client = os.getpid()
        self._lock = threading.Lock()
        ids, passed = helper_ids()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = ["proofbox-guest", "keep-layers", str(far.fileno()), str(self.client), ids]
        with far:
            try:
                self._process = subprocess.Popen(
                    words,
                    executable=guest_path(),
                    cwd="/",
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(far.fileno(), *passed),
                    start_new_session=True,
                )
            except OSError as error:
                near.close()
                raise CreateFailed(f"start the keeper of layers: {error.strerror}", "layers") from error
        near.settimeout(ANSWER_S)
        self._control = near

    def make(self, kib: int, inodes: int) -> Written:
        """An empty layer in memory, to be filled through its descriptor. Raises ``CreateFailed``."""
        slot, descriptor = self._ask(b"M", (kib, inodes))
        return Written(descriptor, _slot=(self, slot))

    def usable(self) -> bool:
        """Alive, and ours."""
        return self.client == os.getpid() and self._process.poll() is None

    def attach(self, descriptor: int) -> int:
        """Attaches a detached mount; the slot that it is in. Raises ``CreateFailed``."""
        return self._ask(b"A", (), descriptor)[0]

    def copies(self, slots: Sequence[int]) -> list[int]:
        """A new detached mount of each, as descriptors that the caller owns. Raises ``CreateFailed``."""
        found: list[int] = []
        try:
            for at in range(0, len(slots), COPIES_MOST):
                found += self._ask(b"C", slots[at : at + COPIES_MOST])[1:]
        except BaseException:
            for each in found:
                discard(each)
            raise
        return found

    def drop(self, slot: int) -> None:
        """Lets one go. Never fails: what a dead keeper held is gone."""
        if not self.usable():
            return
        try:
            self._control.send(b"D" + struct.pack("=I", slot))
        except OSError:
            return  # it has died since

    def close(self) -> None:
        """Ends it, and all that it holds. Idempotent; blocks until it has exited."""
        self._control.close()
        if self.client == os.getpid():
            self._process.wait()

    def _ask(self, kind: bytes, numbers: Sequence[int], descriptor: int = -1) -> list[int]:
        message = kind + struct.pack(f"={len(numbers)}I", *numbers)
        with self._lock:
            try:
                socket.send_fds(self._control, [message], [] if descriptor < 0 else [descriptor])
                answer, ancillary, _, _ = self._control.recvmsg(
                    64, socket.CMSG_SPACE(4 * COPIES_MOST), socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                raise CreateFailed(f"ask the keeper of layers: {error}", "layers") from error
        if len(answer) != 5:
            raise CreateFailed("the keeper of layers has ended; what it held is gone", "layers")
        number: int = struct.unpack("=I", answer[1:])[0]
        if answer[:1] == b"E":
            raise CreateFailed(f"keep a layer: {os.strerror(number)}", "layers")
        return [number, *(fd for _, _, data in ancillary for fd in struct.unpack(f"={len(data) // 4}i", data))]


@dataclass(slots=True)
class _Process:
    """What holds layers, and lets go of them."""

    keeper: Keeper | None = None
    background: queue.SimpleQueue[Callable[[], object]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_mine: Final = OfProcess(_Process)


def can_stack() -> bool:
    """Whether a frozen layer can lie below another sandbox: where each has ids of its own they have to be mapped."""
    return not find_ids().full or _kernel() >= MAPS_TMPFS


@cache
def takes_marks(kind: Literal["user", "trusted"] = "user") -> bool:
    """Whether a file system in memory takes the attributes by which an overlay of a user namespace marks directories:
    since Linux 6.6, or where somebody has put that into an older one; or those of the host's root, from us.
    """
    file = os.memfd_create("proofbox-marks", os.MFD_CLOEXEC)
    try:
        os.setxattr(file, f"{kind}.proofbox", b"")
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def marked_by_root(ids: Ids) -> bool:
    """Whether overlays of sandboxes are mounted by the host's root, as they could mark nothing otherwise."""
    return ids.full and not takes_marks() and takes_marks("trusted")


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(takewhile(str.isdigit, minor)))


def keeper() -> Keeper:
    """The one of this process, started if there is none that lives. Blocks."""
    mine = _mine()
    with mine.lock:
        if mine.keeper is None or not mine.keeper.usable():
            mine.keeper = Keeper()
        return mine.keeper


def close_keeper() -> None:
    """Ends the one of this process, when no layer is frozen any more. Idempotent; blocks."""
    mine = _mine()
    with mine.lock:
        kept, mine.keeper = mine.keeper, None
    if kept is not None:
        kept.close()


def discard(descriptor: int) -> None:
    """Closes a detached mount in the background: it waits for the kernel, 50 us or more, and frees what was written."""
    in_background(lambda: os.close(descriptor))


def in_background(work: Callable[[], object]) -> None:
    """Does it soon, after what was given before, in a thread that does not keep this process from its end."""
    mine = _mine()
    with mine.lock:
        if mine.background is None:
            mine.background = queue.SimpleQueue()
            threading.Thread(target=_work, args=(mine.background,), name="proofbox lets go", daemon=True).start()
    mine.background.put(work)


def _work(waiting: queue.SimpleQueue[Callable[[], object]]) -> None:
    while True:
        try:
            waiting.get()()
        except OSError as error:
            log.warning("what a sandbox wrote could not be removed: %s", error)


def helper_ids() -> tuple[str, tuple[int, ...]]:
    """How our programs that work on layers become root (guest/userns.h): their word for it, and the descriptor that it
    names.
    """
    ids = find_ids()
    if ids.full:
        return "all", ()
    return ("one", ()) if ids.namespace < 0 else (str(ids.namespace), (ids.namespace,))
