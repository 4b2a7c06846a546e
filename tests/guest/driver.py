"""Drives a guest over a socket pair, without any sandbox: the smallest host there can be."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections import defaultdict, deque
from pathlib import Path

from proofbox.wire import frames, guest
from proofbox.wire.frames import Frame, FrameDecoder

PATIENCE = 20.0
SH_ENV = (b"PATH=/usr/local/bin:/usr/bin:/bin",)


class Guest:
    """One guest process, unisolated. Frames that arrive are sorted by stream; data is gathered by stream and pipe."""

    def __init__(
        self, binary: Path, *words: str, life_ms: int = 0, fingerprint: bool = False, ahead: bool = False
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [str(binary), "guest", str(theirs.fileno()), "unisolated", *words], pass_fds=(theirs.fileno(),)
            )
        self.socket = ours
        self.decoder = FrameDecoder("guest")
        self.frames: dict[int, deque[Frame]] = defaultdict(deque)
        self.data: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self.eof: set[tuple[int, int]] = set()
        self.credit: dict[tuple[int, int], int] = defaultdict(lambda: frames.FIRST_CREDIT)
        self.refill = True
        self.closed = False
        self.next_stream = 0
        hello = guest.HostHello(life_ms=life_ms, unisolated=True, fingerprint=fingerprint, ahead=ahead)
        self.send(frames.HELLO, 0, guest.HOST_HELLO_LAYOUT.encode(hello))
        self.hello = guest.GUEST_HELLO_LAYOUT.decode(self.wait(0, frames.GUEST_HELLO).payload)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()
        self.process.wait(PATIENCE)

    def stream(self) -> int:
        """A number that was never used."""
        self.next_stream += 1
        return self.next_stream

    def send(self, kind: int, stream: int = 0, payload: bytes = b"", *, pipe: int = 0, flags: int = 0) -> None:
        """Sends one frame."""
        self.socket.sendall(frames.encode_frame(kind, stream, payload, pipe=pipe, flags=flags))

    def pump(self, timeout: float = 0.0) -> bool:
        """Takes what has arrived; False if nothing came in time."""
        if self.closed or not select.select([self.socket], [], [], timeout)[0]:
            return False
        try:
            raw = self.socket.recv(1 << 18)
        except ConnectionError:
            raw = b""
        if not raw:
            self.closed = True
            return False
        for frame in self.decoder.feed(raw):
            self.take(frame)
        return True

    def take(self, frame: Frame) -> None:
        key = (frame.stream, frame.pipe)
        if frame.type == frames.GUEST_DATA:
            assert key not in self.eof, "data after the end of a pipe"
            self.data[key] += frame.payload
            if frame.eof:
                self.eof.add(key)
            if self.refill and frame.payload:
                self.send(frames.CREDIT, frame.stream, guest.encode_credit(len(frame.payload)), pipe=frame.pipe)
        elif frame.type == frames.GUEST_CREDIT:
            self.credit[key] += guest.decode_credit(frame.payload)
        else:
            if frame.type == frames.END:
                end = guest.END_LAYOUT.decode(frame.payload)
                self.eof |= {(frame.stream, pipe) for pipe in (1, 2) if not end.held_pipe(pipe)}
            self.frames[frame.stream].append(frame)

    def wait(self, stream: int, kind: int, patience: float = PATIENCE) -> Frame:
        """The next frame of that type on the stream; other control frames of the stream before it are dropped."""
        until = time.monotonic() + patience
        while True:
            while self.frames[stream]:
                frame = self.frames[stream].popleft()
                if frame.type == kind:
                    return frame
            assert not self.closed, f"the guest has gone while {kind:#x} on stream {stream} was awaited"
            assert time.monotonic() < until, f"no frame {kind:#x} on stream {stream}"
            self.pump(0.2)

    def quiet(self, seconds: float) -> None:
        """Takes what comes in that time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.pump(left)

    def start(self, run: guest.Run, stream: int | None = None) -> int:
        """Sends RUN and returns its stream."""
        stream = stream or self.stream()
        self.socket.sendall(frames.encode_message(frames.RUN, stream, guest.RUN_LAYOUT.encode(run)))
        return stream

    def shell(self, text: str, **more: object) -> int:
        """Starts a shell text."""
        values: dict[str, object] = {
            "kind": guest.SHELL,
            "args": (text.encode(),),
            "env": SH_ENV,
            "cwd": b"/tmp",
            **more,
        }
        return self.start(guest.Run(**values))  # type: ignore[arg-type]

    def argv(self, *args: str, **more: object) -> int:
        """Starts an argv."""
        values: dict[str, object] = {"kind": guest.ARGV, "args": tuple(map(os.fsencode, args)), "env": SH_ENV, **more}
        return self.start(guest.Run(**values))  # type: ignore[arg-type]

    def feed(self, stream: int, data: bytes, *, pipe: int = 0, eof: bool = True) -> None:
        """Sends data within the credit, waiting for more of it; the rest is not sent where the stream ends before."""
        at = 0
        while at < len(data):
            while not self.credit[stream, pipe]:
                if any(frame.type == frames.END for frame in self.frames[stream]):
                    return
                assert self.pump(PATIENCE), "no credit came"
            piece = data[at : at + min(frames.MAX_PAYLOAD, self.credit[stream, pipe])]
            self.credit[stream, pipe] -= len(piece)
            self.send(frames.DATA, stream, piece, pipe=pipe)
            at += len(piece)
            self.pump()
        if eof:
            self.send(frames.DATA, stream, pipe=pipe, flags=frames.EOF)

    def started(self, stream: int) -> int:
        """Waits for STARTED; the pid."""
        return guest.STARTED_LAYOUT.decode(self.wait(stream, frames.STARTED).payload).pid

    def end(self, stream: int) -> guest.End:
        """Waits for END."""
        return guest.END_LAYOUT.decode(self.wait(stream, frames.END).payload)

    def refused(self, stream: int) -> guest.Refused:
        """Waits for REFUSED."""
        return guest.REFUSED_LAYOUT.decode(self.wait(stream, frames.REFUSED).payload)

    def out(self, stream: int, pipe: int = 1) -> bytes:
        """What has come out of a pipe so far."""
        return bytes(self.data[stream, pipe])

    def file(self, operation: int, path: bytes, data: bytes | None = None, **more: object) -> tuple[guest.End, bytes]:
        """A whole file operation: its END, and the bytes of pipe 1."""
        values: dict[str, object] = {"kind": guest.FILE, "file_op": operation, "path": path, **more}
        stream = self.start(guest.Run(**values))  # type: ignore[arg-type]
        if data is not None:
            self.feed(stream, data)
        return self.end(stream), self.out(stream)


def alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second: reaped between the open and the read
        return False


def vanished(pids: list[int], patience: float = PATIENCE) -> bool:
    """All of them are gone before patience ends."""
    until = time.monotonic() + patience
    while any(map(alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
