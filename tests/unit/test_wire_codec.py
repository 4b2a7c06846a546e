"""The codec of the guest protocol: round trips, arbitrary splits, arbitrary bytes, and each rule that it holds."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.wire import frames, guest
from proofbox.wire.frames import Frame, FrameDecoder, WireError, encode_frame, encode_message
from proofbox.wire.layout import Layout

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
TEXT = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"n"))

RUNS = st.builds(
    guest.Run,
    kind=U8,
    args=st.lists(TEXT, max_size=4).map(tuple),
    env=st.lists(TEXT, max_size=4).map(tuple),
    cwd=st.none() | TEXT,
    user=st.none() | TEXT,
    stdin=st.booleans(),
    pty=st.none() | st.tuples(U16, U16),
    deadline_ms=U64,
    grace_ms=U32,
    keep=st.none() | U64,
    window=U32,
    channel=st.booleans(),
    drain_ms=U32,
    output_limit=U64,
    rlimits=st.lists(st.tuples(U32, U64, U64), max_size=3).map(tuple),
    shell=st.none() | TEXT,
    merge=st.booleans(),
    file_op=st.none() | U8,
    path=st.none() | TEXT,
    path2=st.none() | TEXT,
    mode=st.none() | U32,
    owner=st.none() | TEXT,
    offset=U64,
    limit=st.none() | U64,
    flags=U8,
    size=st.none() | U64,
)
ENDS = st.builds(
    guest.End,
    how=st.integers(0, 5),
    code=st.integers(0, 255),
    elapsed_us=U64,
    cpu_us=st.tuples(U64, U64),
    max_rss=U64,
    produced=st.tuples(U64, U64, U64),
    held=st.integers(0, 7).map(lambda bits: bits << 1),
    left=st.none() | st.integers(0, 2**32 - 2),
    gone=st.booleans(),
    errno=st.integers(0, 2**31 - 1),
    result=st.binary(max_size=60),
)
HELLO = encode_frame(frames.GUEST_HELLO, 0, guest.GUEST_HELLO_LAYOUT.encode(guest.GuestHello(pid=1)))


@given(RUNS)
def test_run_survives_the_round_trip(run: guest.Run) -> None:
    """What the host encodes is what the other end decodes, field by field."""
    assert guest.RUN_LAYOUT.decode(guest.RUN_LAYOUT.encode(run)) == run


@given(ENDS)
def test_end_survives_the_round_trip(end: guest.End) -> None:
    """An END keeps every field, and an unknown number of left processes stays unknown."""
    assert guest.END_LAYOUT.decode(guest.END_LAYOUT.encode(end)) == end


@pytest.mark.parametrize(
    ("layout", "value"),
    [
        (guest.HOST_HELLO_LAYOUT, guest.HostHello(life_ms=5, unisolated=True)),
        (guest.HOST_HELLO_LAYOUT, guest.HostHello(fingerprint=True)),
        (guest.CONNECT_LAYOUT, guest.Connect(unix=b"@x")),
        (guest.CONNECT_LAYOUT, guest.Connect(tcp=80, window=9)),
        (guest.GUEST_HELLO_LAYOUT, guest.GuestHello(pid=1, machine=b"x86_64 6.18.0")),
        (guest.GUEST_HELLO_LAYOUT, guest.GuestHello(pid=1, fingerprint=b"\1\0\0")),
        (guest.STARTED_LAYOUT, guest.Started(pid=77)),
        (guest.REFUSED_LAYOUT, guest.Refused(step=b"user", errno=2, message=b"no such user")),
        (guest.FATAL_LAYOUT, guest.Fatal(message=b"launch: mount: No space left on device")),
        (guest.KILL_ALL_LAYOUT, guest.KillAllReply(killed=3, gone=True)),
        (guest.LIST_LAYOUT, guest.ListReply(streams=((1, 0, 5), (2, 1, 6)))),
    ],
)
def test_small_messages_survive_the_round_trip(layout: Layout[msgspec.Struct], value: msgspec.Struct) -> None:
    """Every other message is the same after both directions."""
    assert layout.decode(layout.encode(value)) == value


@given(st.lists(st.tuples(st.integers(1, 5), st.binary(max_size=300), st.booleans()), max_size=8), st.data())
def test_frames_survive_any_split(items: list[tuple[int, bytes, bool]], data: st.DataObject) -> None:
    """However the stream is cut, the frames are the same, and nothing is half read at the end."""
    wanted = [Frame(frames.GUEST_DATA, stream, payload, 1, eof) for stream, payload, eof in items]
    stream = HELLO + b"".join(
        encode_frame(f.type, f.stream, f.payload, pipe=1, flags=frames.EOF if f.eof else 0) for f in wanted
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder, got = FrameDecoder("guest"), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got[1:] == wanted
    assert decoder.idle


@settings(max_examples=300)
@given(st.binary(max_size=400), st.sampled_from(["guest", "host"]), st.booleans())
def test_arbitrary_bytes_give_frames_or_a_wire_error(raw: bytes, side: frames.Side, after_hello: bool) -> None:
    """No input raises anything but WireError, and what is decoded from the frames raises nothing else either."""
    decoder = FrameDecoder(side)
    decode: dict[int, Callable[[bytes], object]] = {
        frames.RUN: guest.RUN_LAYOUT.decode,
        frames.END: guest.END_LAYOUT.decode,
        frames.REPLY: guest.LIST_LAYOUT.decode,
        frames.REFUSED: guest.REFUSED_LAYOUT.decode,
    }
    try:
        if after_hello and side == "guest":
            decoder.feed(HELLO)
        for frame in decoder.feed(raw):
            if frame.type in decode:
                decode[frame.type](frame.payload)
    except WireError:
        pass


@settings(max_examples=300)
@given(st.binary(max_size=120))
def test_arbitrary_fields_give_a_value_or_a_wire_error(raw: bytes) -> None:
    """Every message decoder takes hostile bytes and answers with a value or WireError."""
    for decode in (
        guest.RUN_LAYOUT.decode,
        guest.END_LAYOUT.decode,
        guest.REFUSED_LAYOUT.decode,
        guest.STARTED_LAYOUT.decode,
        guest.LIST_LAYOUT.decode,
        guest.KILL_ALL_LAYOUT.decode,
        guest.GUEST_HELLO_LAYOUT.decode,
        guest.FATAL_LAYOUT.decode,
        guest.decode_stat,
        guest.decode_credit,
        guest.decode_signal,
        guest.decode_resize,
        lambda raw: list(guest.decode_entries(raw)),
    ):
        try:
            decode(raw)
        except WireError:
            pass


def _header(length: int, kind: int, flags: int = 0, pipe: int = 0, stream: int = 0) -> bytes:
    return struct.pack("<IBBHI", length, kind, flags, pipe, stream)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (_header(65_537, frames.GUEST_DATA, pipe=1, stream=1), "at most 65536"),
        (_header(0, 0x85, stream=1), "not one that the guest sends"),
        (_header(0, frames.DATA, stream=1), "not one that the guest sends"),
        (_header(0, frames.GUEST_DATA, flags=4, pipe=1, stream=1), "flags"),
        (_header(0, frames.GUEST_DATA, flags=1, pipe=1, stream=1), "flags"),
        (_header(0, frames.END, flags=2, stream=1), "flags"),
        (_header(0, frames.GUEST_DATA, pipe=0, stream=1), "pipe 0"),
        (_header(0, frames.GUEST_DATA, pipe=4, stream=1), "pipe 4"),
        (_header(4, frames.GUEST_CREDIT, pipe=1, stream=1), "pipe 1"),
        (_header(0, frames.END, pipe=1, stream=1), "which has none"),
        (_header(0, frames.END, stream=0), "stream 0"),
        (_header(0, frames.PONG, stream=1), "stream 1"),
        (_header(3, frames.GUEST_CREDIT, pipe=0, stream=1), "payload of 3"),
        (_header(65, frames.PONG), "payload of 65"),
        (_header(0, frames.GUEST_HELLO), "HELLO comes first"),
    ],
)
def test_each_rule_of_a_frame_is_held(raw: bytes, why: str) -> None:
    """A header that breaks one rule is refused before its payload is there, and the decoder stays broken."""
    decoder = FrameDecoder("guest")
    decoder.feed(HELLO)
    with pytest.raises(WireError, match=why):
        decoder.feed(raw)
    with pytest.raises(WireError, match=why):
        decoder.feed(b"")


def test_hello_must_come_first() -> None:
    """Anything but HELLO or FATAL as the first frame of a guest is a violation."""
    with pytest.raises(WireError, match="HELLO comes first"):
        FrameDecoder("guest").feed(_header(0, frames.PONG))
    fatal = encode_frame(frames.FATAL, 0, guest.FATAL_LAYOUT.encode(guest.Fatal(message=b"launch: clone")))
    assert [frame.type for frame in FrameDecoder("guest").feed(fatal)] == [frames.FATAL]


def test_a_long_run_travels_in_parts_between_other_streams() -> None:
    """A RUN above one frame is joined again, also when frames of other streams come between its parts."""
    run = guest.Run(kind=guest.SHELL, args=(b"x" * 200_000,))
    raw = encode_message(frames.RUN, 1, guest.RUN_LAYOUT.encode(run))
    decoder = FrameDecoder("host")
    decoder.feed(encode_frame(frames.HELLO, 0, guest.HOST_HELLO_LAYOUT.encode(guest.HostHello())))
    cut = 2 * (frames.MAX_PAYLOAD + 12)
    assert decoder.feed(raw[:cut]) == []
    assert not decoder.idle
    assert [frame.type for frame in decoder.feed(encode_frame(frames.PING))] == [frames.PING]
    (whole,) = decoder.feed(raw[cut:])
    assert guest.RUN_LAYOUT.decode(whole.payload) == run


def test_a_run_above_16_mib_is_refused_on_both_sides() -> None:
    """The encoder does not make it, and the decoder does not gather it."""
    with pytest.raises(WireError, match="cannot have"):
        encode_message(frames.RUN, 1, b"\0" * (frames.MAX_MESSAGE + 1))
    decoder = FrameDecoder("host")
    decoder.feed(encode_frame(frames.HELLO, 0, guest.HOST_HELLO_LAYOUT.encode(guest.HostHello())))
    part = encode_frame(frames.RUN, 1, b"\0" * frames.MAX_PAYLOAD, flags=frames.MORE)
    decoder.feed(part * 256)
    with pytest.raises(WireError, match="passes"):
        decoder.feed(part)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([(99, b"")], "no field 99"),
        ([(1, b"\0"), (1, b"\0")], "twice"),
        ([(1, b"\0\0")], "has 2 bytes"),
        ([(2, struct.pack("<i", 0))], "missing"),
        ([(1, b"\6"), (2, struct.pack("<i", 0))], "how 6"),
        ([(1, b"\0"), (2, struct.pack("<i", 256))], "code 256"),
        ([(1, b"\0"), (2, struct.pack("<i", 0)), (7, b"\1")], "held"),
        ([(1, b"\0"), (2, struct.pack("<i", 0)), (9, b"\2")], "not 0 or 1"),
    ],
)
def test_each_rule_of_an_end_is_held(fields: list[tuple[int, bytes]], why: str) -> None:
    """Unknown, repeated, short, missing and out-of-range fields are violations."""
    with pytest.raises(WireError, match=why):
        guest.END_LAYOUT.decode(frames.encode_fields(fields))


@pytest.mark.parametrize("name", [b"", b"/etc", b"..", b"a/../b", b"a//b", b".", b"a\0b"])
def test_list_names_cannot_leave_the_directory(name: bytes) -> None:
    """A hostile guest cannot hand the host a name that leads out of the listed directory."""
    entry = guest.ListEntry(name, guest.StatRecord(0o100644, 0, 0, 1, 0, 1, 0))
    with pytest.raises(WireError, match="name"):
        list(guest.decode_entries(guest.encode_entry(entry)))


def test_data_is_cut_into_frames_and_ends_once() -> None:
    """Data of any size is cut at 65,536 bytes, only the last frame has EOF, and an EOF alone is a frame."""
    decoder = FrameDecoder("host")
    decoder.feed(encode_frame(frames.HELLO, 0, guest.HOST_HELLO_LAYOUT.encode(guest.HostHello())))
    for size, count in ((0, 1), (1, 1), (65_536, 1), (65_537, 2), (200_000, 4)):
        got = decoder.feed(b"".join(frames.encode_data(frames.DATA, 1, 0, b"z" * size, eof=True)))
        assert len(got) == count
        assert [f.eof for f in got] == [False] * (count - 1) + [True]
        assert b"".join(f.payload for f in got) == b"z" * size


def test_text_with_nul_is_refused_by_the_encoder() -> None:
    """A NUL in an argument would cut it short inside; it is refused before it is sent."""
    with pytest.raises(WireError, match="NUL"):
        guest.RUN_LAYOUT.encode(guest.Run(kind=guest.ARGV, args=(b"a\0b",)))
