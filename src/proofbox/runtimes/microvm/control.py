"""What is said on the control port of a machine, between us and its init: ``docs/microvm.md`` has the messages."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

import anyio

from proofbox.errors import ProtocolViolation
from proofbox.model.outcome import Usage
from proofbox.model.spec import SandboxSpec
from proofbox.runtime.messages import End, Failed, Ready, decode_report, encode_field, encode_number
from proofbox.wire.frames import WireError, decode_fields

RECORD_MAX: Final = 4096
"""Bytes of a record of the machine's."""
ENTROPY: Final = 64
COUNTER_MAX: Final = (1 << 63) - 1
"""No kernel has counted further, and what keeps traces takes no larger number."""
WAITING: Final = b"W"
RENEWED: Final = b"N"


class Kind(IntEnum):
    """First byte of a record to init, beside those that it hands on to its launcher."""

    MACHINE = 3
    USAGE = 4
    RENEW = 5


class Machine(IntEnum):
    """Tags of MACHINE and RENEW."""

    ENTROPY = 1
    CLOCK = 2
    IMAGES = 3
    HOSTNAME = 4
    MACHINE_ID = 5
    BOOT_ID = 6


class Counter(IntEnum):
    """Tags of what init counts, each with eight bytes."""

    OOM_KILLS = 1
    PROCESS_DENIALS = 2
    PROCESSES = 3
    DISK = 4
    DISK_FREE = 5
    INODES_FREE = 6


def encode_machine(images: int) -> bytes:
    """MACHINE: what a machine must not have in common with others that start from the same state."""
    return bytes([Kind.MACHINE]) + _moment() + encode_number(Machine.IMAGES, images)


def encode_renew(spec: SandboxSpec) -> bytes:
    """RENEW: the same for a copy of a machine whose sandbox runs, with what the sandbox is called from here on."""
    named = [(Machine.HOSTNAME, spec.hostname), (Machine.MACHINE_ID, spec.machine_id), (Machine.BOOT_ID, spec.boot_id)]
    names = b"".join(encode_field(tag, text.encode()) for tag, text in named if text)
    return bytes([Kind.RENEW]) + _moment() + names


def _moment() -> bytes:
    return encode_field(Machine.ENTROPY, os.urandom(ENTROPY)) + encode_number(Machine.CLOCK, time.time_ns())


@dataclass(slots=True, eq=False)
class Control:
    """Our end of the port. One reads at a time.

    Init says each thing once, and counts once for each time that it was asked, and once more at its end. More than that
    is a ``ProtocolViolation``: who has taken over the machine's kernel can keep nobody busy here.
    """

    port: socket.socket
    waiting: bool = False
    """Init waits for its messages."""
    ready: Ready | None = None
    failed: Failed | None = None
    end: End | None = None
    counted: Usage = field(default_factory=Usage)
    """The latest counters that came."""
    _asked: int = 0
    _answered: int = 0
    _renewing: bool = False
    _buffer: bytearray = field(default_factory=bytearray)
    _alone: anyio.Lock = field(default_factory=anyio.Lock)

    async def send(self, *records: bytes) -> None:
        """Each as one record. Raises ``BrokenResourceError`` if the machine is gone. Only before others read."""
        data = memoryview(b"".join(struct.pack("<I", len(each)) + each for each in records))
        while data:
            try:
                data = data[self.port.send(data) :]
            except BlockingIOError:
                await anyio.wait_writable(self.port)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def take(self) -> bool:
        """Waits for the next record and takes it in; False at the end. Safe to cancel. ``ProtocolViolation``."""
        async with self._alone:
            return await self._take()

    async def usage(self) -> Usage:
        """The machine's own counters now; the latest ones if it does not tell any more. Safe to cancel.

        Raises ``ProtocolViolation``.
        """
        async with self._alone:
            self._asked += 1
            with suppress(anyio.BrokenResourceError):
                await self.send(bytes([Kind.USAGE]))
                while self._answered < self._asked and await self._take():
                    pass
            return self.counted

    async def renew(self, spec: SandboxSpec) -> None:
        """Makes a copy of a machine another one: its random numbers, its clock, and what its sandbox is called.

        Nobody may use the sandbox before this returns. Raises ``BrokenResourceError`` if the machine is gone, as it is
        when that fails; ``failed`` says why then.
        """
        async with self._alone:
            self._renewing = True
            await self.send(encode_renew(spec))
            while self._renewing:
                if not await self._take():
                    raise anyio.BrokenResourceError

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """While this is open nothing is asked, and nothing that was is still to be answered."""
        async with self._alone:
            yield

    async def drain(self) -> None:
        """Takes in all that came before the machine's end, once it has ended."""
        async with self._alone:
            while await self._take():
                pass

    async def _take(self) -> bool:
        while True:
            record = self._next()
            if record is not None:
                self._note(record)
                return True
            try:
                data = self.port.recv(RECORD_MAX)
            except BlockingIOError:
                await anyio.wait_readable(self.port)
                continue
            except OSError:
                data = b""
            if not data:
                return False
            self._buffer += data

    def _next(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        (size,) = struct.unpack_from("<I", self._buffer)
        if not 0 < size <= RECORD_MAX:
            raise ProtocolViolation(f"the machine's init sent a record of {size} bytes")
        if len(self._buffer) < 4 + size:
            return None
        record = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return record

    def _note(self, record: bytes) -> None:
        if record == WAITING and not self.waiting:
            self.waiting = True
        elif record == RENEWED and self._renewing:
            self._renewing = False
        elif record[:1] == b"U" and self._answered <= self._asked:
            self._answered += 1
            self.counted = decode_usage(record[1:])
        else:
            self._note_report(record)

    def _note_report(self, record: bytes) -> None:
        try:
            report = decode_report(record)
        except ValueError as error:
            raise ProtocolViolation(f"the machine's init, out of turn or not at all its word: {error}") from error
        match report:
            case Ready() if self.ready is None:
                self.ready = report
            case Failed() if self.failed is None:
                self.failed = report
            case End() if self.end is None:
                self.end = report
            case _:
                raise ProtocolViolation(f"the machine's init said a second time {report}")


def decode_usage(data: bytes) -> Usage:
    """The counters of a record. Raises ``ProtocolViolation``."""
    try:
        fields = decode_fields(data)
    except WireError as error:
        raise ProtocolViolation(f"the machine's init sent counters that are none: {error}") from error
    found = {tag: int.from_bytes(value, "little") for tag, value in fields}
    if any(len(value) != 8 for _, value in fields) or max(found.values(), default=0) > COUNTER_MAX:
        raise ProtocolViolation(f"the machine's init sent counters that are none: {data[:80]!r}")
    full: Literal["disk", "inodes"] | None = None
    if found.get(Counter.DISK_FREE) == 0:
        full = "disk"
    elif found.get(Counter.INODES_FREE) == 0:
        full = "inodes"
    return Usage(
        oom_kills=found.get(Counter.OOM_KILLS),
        process_denials=found.get(Counter.PROCESS_DENIALS),
        processes_now=found.get(Counter.PROCESSES),
        disk=found.get(Counter.DISK),
        full=full,
    )
