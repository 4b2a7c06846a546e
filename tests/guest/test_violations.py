"""A host that breaks the protocol gets FATAL, and the guest ends with everything in it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from proofbox.wire import frames, guest
from proofbox.wire.frames import encode_fields, encode_frame

from .driver import Guest, vanished


def _header(length: int, kind: int, flags: int = 0, pipe: int = 0, stream: int = 0) -> bytes:
    return struct.pack("<IBBHI", length, kind, flags, pipe, stream)


def _run(*fields: tuple[int, bytes], stream: int = 9) -> bytes:
    return encode_frame(frames.RUN, stream, encode_fields(fields))


VIOLATIONS = {
    "frame too long": _header(65_537, frames.RUN, stream=9),
    "unknown type": _header(0, 0x40, stream=9),
    "type of the guest": _header(0, frames.END, stream=9),
    "second HELLO": encode_frame(frames.HELLO, 0, guest.HOST_HELLO_LAYOUT.encode(guest.HostHello())),
    "unknown flag": _header(0, frames.DATA, flags=4, stream=9),
    "MORE on DATA": _header(0, frames.DATA, flags=1, stream=9),
    "EOF on RUN": _header(0, frames.RUN, flags=2, stream=9),
    "DATA on pipe 1": _header(0, frames.DATA, pipe=1, stream=9),
    "CREDIT on pipe 0": encode_frame(frames.CREDIT, 9, b"\0\0\0\0"),
    "CREDIT of three bytes": encode_frame(frames.CREDIT, 9, b"\0\0\0", pipe=1),
    "pipe on KILL": _header(0, frames.KILL, pipe=1, stream=9),
    "RUN on stream 0": _header(0, frames.RUN),
    "PING on stream 1": _header(0, frames.PING, stream=1),
    "PING too long": encode_frame(frames.PING, 0, b"x" * 65),
    "SIGNAL scope 3": encode_frame(frames.SIGNAL, 9, struct.pack("<iB", 9, 3)),
    "RUN without kind": _run((2, b"true")),
    "RUN with an unknown tag": _run((1, b"\0"), (99, b"")),
    "RUN with a known tag's gap": _run((1, b"\0"), (19, b"\0")),
    "RUN with a field twice": _run((1, b"\0"), (1, b"\0")),
    "RUN with a short number": _run((1, b"\0"), (8, b"\0\0")),
    "RUN with NUL in a text": _run((1, b"\0"), (2, b"a\0b")),
    "RUN with a field past its end": encode_frame(frames.RUN, 9, struct.pack("<BI", 2, 100) + b"x"),
    "RUN with half a field": encode_frame(frames.RUN, 9, b"\1\1"),
    "CONNECT with an unknown tag": encode_frame(frames.CONNECT, 9, encode_fields([(7, b"")])),
}


def _fatal(running: Guest, raw: bytes) -> bytes:
    pid = running.started(running.argv("sleep", "300"))
    running.socket.sendall(raw)
    message = guest.FATAL_LAYOUT.decode(running.wait(0, frames.FATAL).payload).message
    running.process.wait(10)
    assert vanished([pid])
    return message


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_fatal(guest_process: Guest, name: str) -> None:
    """FATAL names the protocol, the guest exits, and its commands are gone."""
    assert _fatal(guest_process, VIOLATIONS[name]).startswith(b"protocol: ")


def test_data_above_the_credit_is_fatal(guest_process: Guest) -> None:
    """A host that sends more than its credit is not served: the guest would have to keep it."""
    stream = guest_process.shell("exec sleep 300", stdin=True)
    guest_process.started(stream)
    piece = encode_frame(frames.DATA, stream, b"x" * 65_536)
    assert b"credit" in _fatal(guest_process, piece * 6)


def test_credit_above_2_31_is_fatal(guest_process: Guest) -> None:
    """The sum of credit is bounded."""
    stream = guest_process.argv("sleep", "300")
    guest_process.started(stream)
    credit = encode_frame(frames.CREDIT, stream, struct.pack("<I", 2**31), pipe=1)
    assert b"credit" in _fatal(guest_process, credit)


@pytest.mark.parametrize("first", [b"", encode_fields([(1, struct.pack("<I", 2))]), encode_fields([(1, b"\1")])])
def test_a_hello_that_the_guest_does_not_speak_is_fatal(binary: Path, first: bytes) -> None:
    """No version, another version or a malformed one: FATAL and exit."""
    import socket
    import subprocess

    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [str(binary), "guest", str(theirs.fileno()), "unisolated"]
        with subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as process:
            ours.sendall(encode_frame(frames.HELLO, 0, first))
            ours.settimeout(10)
            (frame,) = frames.FrameDecoder("guest").feed(ours.recv(4096))
            assert frame.type == frames.FATAL
            assert process.wait(10) == 0


def test_unknown_streams_are_ignored(guest_process: Guest) -> None:
    """The host may have sent these before it learnt of the end."""
    for kind, payload, pipe in (
        (frames.DATA, b"x", 0),
        (frames.CREDIT, b"\1\0\0\0", 1),
        (frames.SIGNAL, guest.encode_signal(9, 0), 0),
        (frames.RESIZE, guest.encode_resize(1, 1), 0),
        (frames.KILL, b"", 0),
        (frames.CLOSE, b"", 0),
    ):
        guest_process.send(kind, 77, payload, pipe=pipe)
    assert guest_process.end(guest_process.argv("true")).code == 0


def test_more_than_1024_streams_are_refused_and_closing_makes_room(guest_process: Guest) -> None:
    """The table is bounded; records of ended streams count until they are closed."""
    streams = [guest_process.start(guest.Run(kind=9)) for _ in range(1024)]
    for stream in streams:
        assert guest_process.refused(stream).step == b"field"
    assert guest_process.refused(guest_process.argv("true")).step == b"limit"
    guest_process.send(frames.CLOSE, streams[0])
    assert guest_process.end(guest_process.argv("true")).code == 0


def test_random_bytes_never_crash_the_guest(binary: Path) -> None:
    """Whatever comes behind the HELLO, the guest ends by itself with exit code 0."""
    for seed in range(20):
        with Guest(binary) as running:
            running.socket.sendall(bytes([seed]) + os.urandom(300))
        assert running.process.returncode == 0
