"""Bytes between host and command: credit, floods, fairness, and connections to servers inside."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from proofbox.wire import frames, guest

from .driver import Guest


def test_100_mb_arrive_whole(guest_process: Guest) -> None:
    """A hundred megabytes come out in order and counted."""
    total = 100_000_000
    stream = guest_process.argv("head", "-c", str(total), "/dev/zero")
    size = 0
    while (stream, 1) not in guest_process.eof:
        assert guest_process.pump(20)
        size += len(guest_process.data[stream, 1])
        guest_process.data[stream, 1].clear()
    end = guest_process.end(stream)
    assert (size, end.produced[0], end.how) == (total, total, guest.EXITED)


def test_without_credit_nothing_more_comes(guest_process: Guest) -> None:
    """A host that gives no credit gets the window and no byte more; the flood blocks in its own pipe, others go on."""
    guest_process.refill = False
    stream = guest_process.argv("yes", window=100_000)
    guest_process.quiet(0.4)
    assert len(guest_process.out(stream)) == 100_000
    other = guest_process.argv("echo", "free")
    assert guest_process.end(other).code == 0
    assert guest_process.out(other) == b"free\n"
    guest_process.send(frames.CREDIT, stream, guest.encode_credit(5), pipe=1)
    guest_process.quiet(0.2)
    assert len(guest_process.out(stream)) == 100_005
    guest_process.send(frames.KILL, stream)
    assert guest_process.end(stream).how == guest.KILLED


def test_output_waits_for_a_slow_host_beyond_the_drain_window(guest_process: Guest) -> None:
    """The drain window is for held pipes: what a command wrote before its end is not lost for a host that is slow."""
    guest_process.refill = False
    stream = guest_process.argv("head", "-c", "50000", "/dev/zero", window=10_000, drain_ms=10)
    guest_process.quiet(0.4)
    assert len(guest_process.out(stream)) == 10_000
    guest_process.send(frames.CREDIT, stream, guest.encode_credit(100_000), pipe=1)
    end = guest_process.end(stream)
    assert (len(guest_process.out(stream)), end.held) == (50_000, 0)


def test_keep_counts_and_drops_the_rest(guest_process: Guest) -> None:
    """The head up to keep is sent, what comes after needs no credit and is counted."""
    stream = guest_process.shell("head -c 20000000 /dev/zero; head -c 70 /dev/zero >&2", keep=1000)
    end = guest_process.end(stream)
    assert end.produced == (20_000_000, 70, 0)
    assert (len(guest_process.out(stream)), len(guest_process.out(stream, 2))) == (1000, 70)


def test_floods_are_served_in_turn(guest_process: Guest) -> None:
    """Three floods get about the same share, and a small command beside them is answered."""
    floods = [guest_process.argv("cat", "/dev/zero") for _ in range(3)]
    small = guest_process.argv("echo", "small")
    assert guest_process.end(small).code == 0
    while not all(guest_process.out(flood) for flood in floods):
        assert guest_process.pump(20)
    before = [len(guest_process.out(flood)) for flood in floods]
    for _ in range(30):  # a busy host lets one of them run later than the others
        for _ in range(600):
            guest_process.pump(1)
        sizes = [len(guest_process.out(flood)) - size for flood, size in zip(floods, before, strict=True)]
        if min(sizes) * 4 > max(sizes):
            break
    assert min(sizes) * 4 > max(sizes)
    for flood in floods:
        guest_process.send(frames.KILL, flood)
    for flood in floods:
        assert guest_process.end(flood).gone


def _serve(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        data = bytearray()
        while piece := connection.recv(65_536):
            data += piece
        connection.sendall(bytes(reversed(data)))


def _tcp(_: Path) -> tuple[socket.socket, guest.Connect]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, guest.Connect(tcp=server.getsockname()[1])


def _unix(directory: Path) -> tuple[socket.socket, guest.Connect]:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(directory / "s"))
    server.listen()
    return server, guest.Connect(unix=bytes(directory / "s"))


def _abstract(directory: Path) -> tuple[socket.socket, guest.Connect]:
    server = socket.socket(socket.AF_UNIX)
    name = f"proofbox-test-{directory.name}"
    server.bind("\0" + name)
    server.listen()
    return server, guest.Connect(unix=b"@" + name.encode())


@pytest.mark.parametrize("kind", [_tcp, _unix, _abstract])
def test_a_connection_carries_bytes_both_ways(
    guest_process: Guest, tmp_path: Path, kind: Callable[[Path], tuple[socket.socket, guest.Connect]]
) -> None:
    """TCP, Unix path and abstract name: half closing works, and END comes when both directions have ended."""
    server, request = kind(tmp_path)
    with server:
        thread = threading.Thread(target=_serve, args=(server,))
        thread.start()
        stream = guest_process.stream()
        guest_process.send(frames.CONNECT, stream, guest.CONNECT_LAYOUT.encode(request))
        assert guest_process.started(stream) == 0
        data = bytes(range(256)) * 2000
        guest_process.feed(stream, data, pipe=3)
        end = guest_process.end(stream)
        thread.join()
    assert guest_process.out(stream, 3) == data[::-1]
    assert (end.how, end.produced[2]) == (guest.EXITED, len(data))


def test_connections_that_cannot_be_are_refused(guest_process: Guest, tmp_path: Path) -> None:
    """Nobody listens, no such path, or no target at all: REFUSED, and nothing hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for request, step in (
        (guest.Connect(tcp=port), b"connect"),
        (guest.Connect(unix=bytes(tmp_path / "none")), b"connect"),
        (guest.Connect(), b"field"),
        (guest.Connect(unix=b"/" + b"x" * 200), b"field"),
    ):
        stream = guest_process.stream()
        guest_process.send(frames.CONNECT, stream, guest.CONNECT_LAYOUT.encode(request))
        assert guest_process.refused(stream).step == step


def test_kill_ends_a_connection(guest_process: Guest) -> None:
    """KILL closes an open connection; END says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = guest_process.stream()
        request = guest.Connect(tcp=server.getsockname()[1])
        guest_process.send(frames.CONNECT, stream, guest.CONNECT_LAYOUT.encode(request))
        guest_process.started(stream)
        connection, _ = server.accept()
        with connection:
            guest_process.send(frames.KILL, stream)
            assert guest_process.end(stream).how == guest.KILLED
            connection.settimeout(5)
            assert connection.recv(1) == b""
