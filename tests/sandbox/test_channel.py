"""What a guest may make the host hold, and what it may say: measured against a peer that writes raw frames."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from proofbox.errors import ProtocolViolation, SandboxLost
from proofbox.sandbox.channel import BACKLOG_MOST, Channel
from proofbox.sandbox.stream import WINDOW, Stream
from proofbox.wire import frames, guest
from proofbox.wire.frames import encode_frame

RUN = guest.Run(kind=guest.ARGV, args=(b"x",), stdin=True)


class Peer:
    """The far end of a channel, and what the channel reported."""

    def __init__(self, like: Channel | None = None) -> None:
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.setblocking(False)
        self.lost: list[ProtocolViolation | None] = []
        self.channel = Channel(near, "test", self._on_lost, like)

    def _on_lost(self, violation: ProtocolViolation | None) -> None:
        self.lost.append(violation)
        self.channel.fail(violation or SandboxLost("gone", "channel"))

    async def say(self, *sent: bytes) -> None:
        """Sends raw bytes, and lets the channel read them."""
        for piece in sent:
            view = memoryview(piece)
            while view:
                try:
                    view = view[self.far.send(view) :]
                except BlockingIOError:
                    await anyio.sleep(0.001)
                except BrokenPipeError:
                    return
        for _ in range(5):
            await anyio.sleep(0.001)

    async def greet(self) -> None:
        """An honest HELLO."""
        hello = guest.GUEST_HELLO_LAYOUT.encode(guest.GuestHello(pid=1))
        await self.say(encode_frame(frames.GUEST_HELLO, 0, hello))


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A peer that has greeted."""
    made = Peer()
    await made.greet()
    yield made
    made.channel.fail(SandboxLost("the test is over", "cancelled"))
    made.far.close()


def data(stream: int, payload: bytes, pipe: int = 1, *, eof: bool = False) -> bytes:
    """A DATA frame."""
    return encode_frame(frames.GUEST_DATA, stream, payload, pipe=pipe, flags=frames.EOF if eof else 0)


def end(stream: int, **said: Any) -> bytes:
    """An END frame."""
    value = guest.End(**{"how": guest.EXITED, "code": 0, **said})
    return encode_frame(frames.END, stream, guest.END_LAYOUT.encode(value))


def run_of(**changed: Any) -> guest.Run:
    """A RUN with other values."""
    return guest.Run(**{"kind": guest.ARGV, "args": (b"x",), "stdin": True, **changed})


LIES: dict[str, tuple[guest.Run, list[bytes], str]] = {
    "data before credit": (RUN, [data(1, b"x" * 65_536)] * (WINDOW // 65_536 + 1), "credit"),
    "more than keep": (run_of(keep=10), [data(1, b"x" * 11)], "10 were asked for"),
    "data after eof": (RUN, [data(1, b"x", eof=True), data(1, b"y")], "ended"),
    "nothing at all": (RUN, [data(1, b"")], "without a byte"),
    "a pipe that is not there": (run_of(merge=True), [data(1, b"x", pipe=2)], "pipe 2"),
    "the channel that is not there": (RUN, [data(1, b"x", pipe=3)], "pipe 3"),
    "counts less than it sent": (RUN, [data(1, b"xyz"), end(1, produced=(2, 0, 0))], "2 bytes came out"),
    "counts more than it sent": (run_of(keep=99), [data(1, b"xyz"), end(1, produced=(4, 0, 0))], "only 3 were sent"),
    "a deadline nobody set": (RUN, [end(1, how=guest.DEADLINE)], "deadline"),
    "a deadline that has not come": (run_of(deadline_ms=60_000), [end(1, how=guest.DEADLINE)], "deadline"),
    "an output limit nobody set": (RUN, [end(1, how=guest.OUTPUT_LIMIT)], "output limit"),
    "an output limit not reached": (run_of(output_limit=9), [end(1, how=guest.OUTPUT_LIMIT)], "output limit"),
    "a kill nobody asked for": (RUN, [end(1, how=guest.KILLED)], "nobody asked"),
    "a reply to a command": (RUN, [encode_frame(frames.REPLY, 1)], "REPLY"),
    "an unknown stream": (RUN, [data(7, b"x")], "stream 7"),
    "a look": (RUN, [encode_frame(frames.LOOKED, 0, b"x")], "nobody asked"),
    "a pong": (RUN, [encode_frame(frames.PONG, 0, b"x")], "nobody asked"),
    "too much credit": (
        RUN,
        [encode_frame(frames.GUEST_CREDIT, 1, guest.encode_credit(1 << 31), pipe=0)],
        "passes 2\\^31",
    ),
    "a refusal after the start": (
        RUN,
        [
            encode_frame(frames.STARTED, 1, guest.STARTED_LAYOUT.encode(guest.Started(pid=5))),
            encode_frame(frames.REFUSED, 1, guest.REFUSED_LAYOUT.encode(guest.Refused(step=b"fork"))),
        ],
        "REFUSED",
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_each_lie_is_a_violation(peer: Peer, lie: str) -> None:
    """It is named, everybody who waits is told, and nothing can be sent any more."""
    run, sent, word = LIES[lie]
    # Nobody takes anything from a pipe without ``keep``, so the guest gets no credit back.
    stream = peer.channel.run(run, run.keep)
    await peer.say(*sent)
    assert len(peer.lost) == 1
    with pytest.raises(ProtocolViolation, match=word):
        raise stream.lost()
    with pytest.raises(ProtocolViolation, match=word):
        peer.channel.run(RUN, None)


async def test_a_ping_is_one_round_trip_and_no_operation(peer: Peer) -> None:
    """It waits for its own answer, given up or not; what counts operations and idleness does not see it."""
    with anyio.move_on_after(0.02):
        await peer.channel.ask().answer()
    assert (peer.channel.operations, peer.channel.busy) == (0, False)
    second: list[str] = []

    async def ping() -> None:
        await peer.channel.ask().answer()
        second.append("answered")

    async with anyio.create_task_group() as group:
        group.start_soon(ping)
        await peer.say(encode_frame(frames.PONG, 0, (1).to_bytes(8, "big")))
        assert second == []
        await peer.say(encode_frame(frames.PONG, 0, (2).to_bytes(8, "big")))
    assert second == ["answered"]
    assert peer.lost == []
    async with anyio.create_task_group() as group:

        async def lost() -> None:
            with pytest.raises(ProtocolViolation, match="nobody asked"):
                await peer.channel.ask().answer()

        group.start_soon(lost)
        await peer.say(encode_frame(frames.PONG, 0, (9).to_bytes(8, "big")))
    assert len(peer.lost) == 1


async def test_no_more_than_a_window_is_held_for_a_slow_reader(peer: Peer) -> None:
    """A reader that takes nothing gives no credit; one that takes half a window gives it back."""
    stream = peer.channel.run(RUN, None)
    await peer.say(*[data(1, b"x" * 65_536)] * (WINDOW // 65_536))
    assert len(stream.incoming[1].buffer) == WINDOW
    assert peer.lost == []
    assert len(peer.channel.read(stream, 1, WINDOW // 2)) == WINDOW // 2
    await peer.say(*[data(1, b"y" * 65_536)] * 2)
    assert peer.lost == []
    assert len(stream.incoming[1].buffer) == WINDOW


async def test_a_guest_that_does_not_read_is_given_up(peer: Peer) -> None:
    """What waits for a guest is bounded: a sender waits, and control frames end in a violation."""
    stream = peer.channel.run(RUN, None)
    sent = 0
    with anyio.move_on_after(0.3):
        while True:
            await peer.channel.room()
            peer.channel.run(run_of(args=(b"x" * 100_000,)), None)
            sent += 100_000
    assert sent < BACKLOG_MOST, "a sender is made to wait long before the hard limit"
    while not peer.lost and sent < 2 * BACKLOG_MOST:
        peer.channel.run(run_of(args=(b"x" * 4_000_000,)), None)
        sent += 4_000_000
    assert isinstance(peer.lost[0], ProtocolViolation)
    assert stream.over


async def test_stdin_waits_for_credit_and_stops_at_the_end(peer: Peer) -> None:
    """The sender neither passes its credit nor waits for ever for a command that ended without reading."""
    stream = peer.channel.run(RUN, None)
    told: list[bool] = []

    async def send() -> None:
        told.append(await peer.channel.send(stream, 0, b"x" * (1 << 20), eof=True))

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await anyio.sleep(0.02)
        assert stream.outgoing[0] == 0
        assert told == []
        received = await drain(peer.far)
        await peer.say(encode_frame(frames.GUEST_CREDIT, 1, guest.encode_credit(10), pipe=0))
        assert await drain(peer.far) == 12 + 10
        await peer.say(end(1))
    assert told == [False]
    assert WINDOW <= received < WINDOW + 1000


async def drain(sock: socket.socket) -> int:
    """Reads until nothing more comes; how many bytes."""
    total = quiet = 0
    while quiet < 5:
        try:
            total += len(sock.recv(1 << 20))
            quiet = 0
        except BlockingIOError:
            quiet += 1
        await anyio.sleep(0.001)
    return total


async def test_the_end_of_the_stream_is_told_once(peer: Peer) -> None:
    """Also if it came in the middle of a frame."""
    stream = peer.channel.run(RUN, None)
    await peer.say(data(1, b"x" * 100)[:50])
    peer.far.close()
    with anyio.fail_after(5):
        await stream.done.wait()
    assert peer.lost == [None]
    assert isinstance(stream.lost(), SandboxLost)


async def test_last_words_are_kept_short(peer: Peer) -> None:
    """What a guest says when it gives up is shown to people: it is cut, and has no control characters of a terminal."""
    await peer.say(
        encode_frame(frames.FATAL, 0, guest.FATAL_LAYOUT.encode(guest.Fatal(message=b"\xff\x1b[2J\r\n" + b"x" * 9_999)))
    )
    assert peer.channel.fatal.startswith("\\xff?[2J  x")
    assert len(peer.channel.fatal) < 500


async def test_streams_are_forgotten_when_they_have_ended(peer: Peer) -> None:
    """A sandbox that runs a million commands holds none of them."""
    streams: list[Stream] = []
    for number in range(1, 300):
        streams.append(peer.channel.run(RUN, 10))
        await peer.say(end(number))
    assert all(stream.over for stream in streams)
    assert not peer.channel.busy
    assert peer.lost == []


REPLAYED = {
    "its first word": encode_frame(frames.GUEST_HELLO, 0, guest.GUEST_HELLO_LAYOUT.encode(guest.GuestHello(pid=1))),
    "the start of a command": encode_frame(frames.STARTED, 1, guest.STARTED_LAYOUT.encode(guest.Started(pid=5))),
    "what a command wrote": data(1, b"of the parent"),
    "the end of a command": end(1),
    "credit of a command": encode_frame(frames.GUEST_CREDIT, 1, guest.encode_credit(1), pipe=0),
    "an answer": encode_frame(frames.PONG, 0, (1).to_bytes(8, "big")),
}
"""What a guest has said once, and can say again in every sandbox that goes on from it."""


@pytest.mark.parametrize("what", REPLAYED)
async def test_what_was_said_before_a_fork_ends_the_child_that_says_it_again(peer: Peer, what: str) -> None:
    """Neither the command that was numbered so, nor the next one of the child is taken for it; the parent goes on."""
    stream = peer.channel.run(RUN, None)
    question = peer.channel.ask()
    await peer.say(*(REPLAYED[each] for each in ("the start of a command", "an answer")))
    await question.answer()
    await peer.say(data(1, b"of the parent", eof=True), data(1, b"", pipe=2, eof=True), end(1, produced=(13, 0, 0)))
    assert stream.over
    assert peer.channel.at_rest
    child = Peer(like=peer.channel)
    own = child.channel.run(RUN, None)
    asked = child.channel.ask()
    assert own.id == 2
    await child.say(REPLAYED[what])
    assert [type(each) for each in child.lost] == [ProtocolViolation]
    assert isinstance(own.error, ProtocolViolation)
    with pytest.raises(ProtocolViolation):
        await asked.answer()
    assert peer.lost == []
    assert peer.channel.ask() is not None
    child.far.close()
