"""One native sandbox as the client holds it: its descriptors, and what the launcher reported so far."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Final

import anyio

from proofbox.host.cgroup import Plan
from proofbox.host.cgroup_events import EventCounters
from proofbox.host.idmap import find_ids
from proofbox.host.layers import Written
from proofbox.kit.loop import Stop, later, watch_readable
from proofbox.runtime.messages import End, Failed, Ready, decode_report
from proofbox.runtimes.native.launcher import Launcher

_ONE_DESCRIPTOR: Final = socket.CMSG_SPACE(4)


@dataclass(slots=True, eq=False)
class NativeHandle:
    """One sandbox: the socket on which the launcher reports on it, and what it reported so far."""

    id: str
    plan: Plan
    launcher: Launcher
    status: socket.socket
    channel: socket.socket | None
    affinity: tuple[int, ...] = ()
    """The processors that it is asked to keep to, where no control group sees to it; none for all."""
    ours: int = 0
    """Pages of its layer's file system that are ours: its machine id and boot id."""
    pid: int = 0
    id_base: int = 0
    ready: bool = False
    failure: str = ""
    end: int | None = None
    removed: bool = False
    lost: bool = False
    started: bool = False
    asked: bool = False
    oom: bool = False
    layer: Written | None = None
    """What it writes over its template, as soon as it is ready."""
    counters: EventCounters = field(init=False)
    waiting: int = 0
    _news: anyio.Event | None = None
    _unwatch: Stop | None = None

    def __post_init__(self) -> None:
        self.counters = EventCounters(self.plan)

    @property
    def over(self) -> bool:
        """It has ended, or the launcher has."""
        return self.end is not None or self.lost

    async def until(self, done: Callable[[], bool], seconds: float = inf) -> bool:
        """Takes in what the launcher reports until that is so; False if it is not so in time. Any number may wait."""
        if done():
            return True
        late = monotonic() + seconds
        stop = later(seconds, self._tell) if seconds < inf else None
        self.waiting += 1
        if self._unwatch is None:
            self._unwatch = watch_readable(self.status.fileno(), self._take)
        try:
            while not done() and monotonic() < late:
                if self._news is None:
                    self._news = anyio.Event()
                await self._news.wait()
        finally:
            if stop is not None:
                stop()
            self.waiting -= 1
            if not self.waiting:
                self._stop_watch()
        return done()

    def close(self) -> None:
        """Lets its descriptors go. Idempotent."""
        self._stop_watch()
        self.status.close()
        self.counters.close()
        if self.layer is not None:
            self.layer.release()
            self.layer = None
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _stop_watch(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def _take(self) -> None:
        try:
            message, ancillary, _, _ = self.status.recvmsg(1024, _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            message, ancillary = b"", []
        for _, _, descriptor in ancillary:
            self.layer = Written(int.from_bytes(descriptor, sys.byteorder))
        match decode_report(message) if message else None:
            case None:
                self.lost = True
                self._stop_watch()
            case Ready(pid, id_base):
                self.ready, self.pid, self.id_base = True, pid, id_base
                if self.layer is not None and find_ids().full:
                    self.layer.base = id_base
            case Failed(text):
                self.failure = self.failure or text
            case End(status, removed):
                self.end, self.removed = status, removed
        self._tell()
