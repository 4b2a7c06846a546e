"""What a machine may say on its control port: whoever has taken over its kernel says anything, as long as he likes."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from threading import Thread

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.errors import ProtocolViolation
from proofbox.model.outcome import Usage
from proofbox.runtimes.microvm.control import COUNTER_MAX, RECORD_MAX, Control, Counter, decode_usage

READY = b"R" + struct.pack("<II", 7, 65536)
END = b"E" + struct.pack("<i", 0)


def record(content: bytes) -> bytes:
    """With its length."""
    return struct.pack("<I", len(content)) + content


def counters(*fields: tuple[int, bytes]) -> bytes:
    """What init counts."""
    return b"U" + b"".join(struct.pack("<BI", tag, len(value)) + value for tag, value in fields)


def number(value: int) -> bytes:
    """As init writes one."""
    return value.to_bytes(8, "little")


def hear(said: Iterable[bytes], work: Callable[[Control], Awaitable[object]] = Control.drain) -> Control:
    """Our end, once a machine has said that; it goes on until nobody listens any more."""
    near, far = socket.socketpair()
    near.setblocking(False)
    control = Control(near)

    def talk() -> None:
        with closing(far):
            try:
                for each in said:
                    far.sendall(each)
            except OSError:
                pass

    async def listen() -> None:
        with anyio.fail_after(60):
            await work(control)

    talking = Thread(target=talk)
    talking.start()
    try:
        anyio.run(listen)
    finally:
        near.close()
        talking.join()
    return control


async def asked_twice(control: Control) -> None:
    """Counters, and then all that came unasked."""
    await control.usage()
    await control.drain()


SAID = st.lists(
    st.one_of(
        st.binary(max_size=40).map(record),
        st.sampled_from([b"W", b"N", READY, END, b"Fstep: why", b"D\0\0\0\0", b"U"]).map(record),
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**64 - 1).map(number)), max_size=5).map(
            lambda fields: record(counters(*fields))
        ),
        st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=20)), max_size=5).map(
            lambda fields: record(counters(*fields))
        ),
        st.binary(max_size=20),
    ),
    max_size=12,
)


@given(said=SAID, cut=st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_whatever_is_said_is_taken_in_or_refused_as_a_lie(said: list[bytes], cut: int) -> None:
    """In pieces and cut off anywhere: it ends, with one error at most, and only counters that a trace can hold stay."""
    near, far = socket.socketpair()
    near.setblocking(False)
    control = Control(near)
    whole = b"".join(said)
    with closing(near), closing(far):
        far.sendall(whole[:cut])
        far.shutdown(socket.SHUT_WR)
        with suppress(ProtocolViolation):
            anyio.run(control.drain)
        assert len(control._buffer) < 4 + 2 * RECORD_MAX
        told = (control.counted.oom_kills, control.counted.process_denials, control.counted.disk)
        assert all(each is None or 0 <= each <= COUNTER_MAX for each in told)


@given(data=st.binary(max_size=200))
def test_counters_are_numbers_of_eight_bytes_or_lies(data: bytes) -> None:
    """Any bytes at all."""
    with suppress(ProtocolViolation):
        assert isinstance(decode_usage(data), Usage)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<I", 0),
        struct.pack("<I", RECORD_MAX + 1),
        struct.pack("<I", 0xFFFF_FFFF),
        record(b"X"),
        record(b"R" + bytes(7)),
        record(READY) * 2,
        record(READY) + record(b"R" + bytes(8)),
        record(END) * 2,
        record(b"Fa: b") * 2,
        record(b"W") * 2,
        record(b"N"),
        record(b"U") * 2,
        record(b"U" + b"\1"),
        record(counters((Counter.OOM_KILLS, bytes(9)))),
        record(counters((Counter.DISK, b"\xff" * 8))),
        record(counters((Counter.DISK, b""))),
    ],
)
def test_what_init_never_says_is_refused_by_name(said: bytes) -> None:
    """Empty, too long, of no kind, twice, unasked, or numbers that are none."""
    with pytest.raises(ProtocolViolation, match="machine's init"):
        hear([said])


@pytest.mark.parametrize("said", [b"W", b"N", b"U", READY, END, b"Fagain: and again"])
@pytest.mark.parametrize("work", [Control.drain, asked_twice], ids=["drain", "usage"])
def test_nobody_is_kept_listening(said: bytes, work: Callable[[Control], Awaitable[object]]) -> None:
    """One who never stops, faster than he is heard, is refused at what he says once too often."""
    with pytest.raises(ProtocolViolation):
        hear(itertools.repeat(record(said)), work)


def test_what_is_cut_off_by_the_end_is_not_a_word() -> None:
    """A machine that ends at any byte of its last words leaves those before, and no error."""
    words = [record(b"W"), record(READY), record(counters((Counter.OOM_KILLS, number(3)))), record(END)]
    whole = b"".join(words)
    for cut in range(len(whole)):
        control = hear([whole[:cut]])
        assert control.waiting == (cut >= len(words[0]))
        assert (control.ready is not None) == (cut >= len(words[0] + words[1]))
        assert control.counted.oom_kills == (3 if cut >= len(whole) - len(words[3]) else None)
        assert control.end is None


def test_each_question_may_be_answered_and_the_end_told() -> None:
    """Two that were asked, one of them given up, and the counters that come before the last word."""
    near, far = socket.socketpair()
    near.setblocking(False)
    control = Control(near)

    async def ask() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(control.usage)
            await anyio.wait_readable(far)
            group.cancel_scope.cancel()
        far.sendall(b"".join(record(counters((Counter.PROCESSES, number(each)))) for each in (1, 2)))
        assert (await control.usage()).processes_now == 2
        far.sendall(record(counters((Counter.PROCESSES, number(3)))) + record(END))
        far.shutdown(socket.SHUT_WR)
        await control.drain()

    with closing(near), closing(far):
        anyio.run(ask)
    assert (control.counted.processes_now, control.end is not None) == (3, True)
