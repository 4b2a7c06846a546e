"""Text of a person to values, at the edge of the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.cli import parse
from proofbox.errors import InvalidInput
from proofbox.model.limits import LIMIT_KINDS, Limits, Walls


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4096", 4096),
        ("512M", 512 << 20),
        ("1.5G", 3 << 29),
        ("1GiB", 1 << 30),
        ("8k", 8192),
        ("7B", 7),
        (" 2 T ", 2 << 40),
    ],
)
def test_sizes_are_read_in_powers_of_1024(text: str, amount: int) -> None:
    """A size is bytes, or a number with a unit as memory is counted."""
    assert parse.size(text) == amount


@pytest.mark.parametrize(
    "text", ["", "M", "-1", "0", "0.1", "1e3", "12 apples", "512MB", "1iB", "inf", "nan", "٣", "1_000"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """A size that is not above 0 bytes, or has a unit with two meanings, is refused, and the message shows it."""
    with pytest.raises(InvalidInput) as caught:
        parse.size(text)
    assert repr(text) in str(caught.value)
    assert "512M" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "amount"), [("30s", 30.0), ("500ms", 0.5), ("2m", 120.0), ("1.5h", 5400.0), ("90", 90.0), ("2.5", 2.5)]
)
def test_times_are_read_as_seconds(text: str, amount: float) -> None:
    """A time is seconds, or a number with a unit."""
    assert parse.seconds(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "s", "0s", "-3s", "3 weeks", "1:30", "inf", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A time of nothing, or one in an unknown unit, is refused."""
    with pytest.raises(InvalidInput):
        parse.seconds(text)


@given(st.text(max_size=12))
def test_no_text_makes_the_parsers_fail_in_another_way(text: str) -> None:
    """Any text is a value above 0 or ``InvalidInput``."""
    for read in (parse.size, parse.seconds, parse.count, parse.processors):
        try:
            assert read(text) > 0
        except InvalidInput:
            pass


def test_limits_are_read_each_in_its_own_unit() -> None:
    """Every kind of limit can be written, with a dash or an underscore, and the last of a kind counts."""
    given_limits = [
        "memory=1G",
        "memory=512M",
        "processes=64",
        "cpus=0.5",
        "command-wall=500ms",
        "wall=1m",
        "output=1M",
    ]
    assert parse.limits(given_limits) == Limits(
        memory=512 << 20, processes=64, cpus=0.5, command_wall=0.5, wall=60.0, output=1 << 20
    )
    assert parse.limits([]) is None
    for kind in LIMIT_KINDS:
        read = parse.limits([f"{kind}=7"])
        assert read is not None
        assert getattr(read, kind) == 7


@pytest.mark.parametrize("text", ["memory", "memory=", "=3", "speed=3", "processes=1.5", "processes=many", "wall=512M"])
def test_a_wrong_limit_names_itself(text: str) -> None:
    """A limit that cannot be read is refused, and the message says which one it was."""
    with pytest.raises(InvalidInput) as caught:
        parse.limits([text])
    assert text.split("=", maxsplit=1)[0] in str(caught.value)


def test_limits_are_shown_as_a_person_reads_them() -> None:
    """Bytes with a unit, seconds with theirs, and only what is set."""
    shown = parse.show_limits(Limits(memory=512 << 20, processes=64, wall=90.0, cpus=2.5))
    assert shown == "memory 512 MiB, processes 64, cpus 2.5, wall 90 s"
    assert parse.show_limits(Limits()) == "none"


def test_new_limits_are_read_in_their_units() -> None:
    """Sizes and times like the others; each is a field of its own."""
    asked = parse.limits(["memory=1G", "memory-reserve=512M", "cpu_time=2m", "idle=30s", "cpus=1.5"])
    assert asked == Limits(memory=1 << 30, memory_reserve=512 << 20, cpu_time=120.0, idle=30.0, cpus=1.5)
    assert parse.show_limits(asked) == "memory 1 GiB, memory reserve 512 MiB, cpus 1.5, cpu time 120 s, idle 30 s"


def test_walls_are_parts_with_times() -> None:
    """The parts of an attempt, and no others."""
    assert parse.walls(["agent=10m", "trial=1h", "agent=5m"]) == Walls(agent_wall=300.0, trial_wall=3600.0)
    assert parse.walls([]) is None
    assert parse.show_walls(Walls(agent_wall=300.0)) == "setup none, agent 300 s, turn none, verify none, trial none"
    for wrong in ("agent", "nothing=3s", "agent=fast"):
        with pytest.raises(InvalidInput):
            parse.walls([wrong])


@pytest.mark.parametrize("text", ["", "from", ":to", "from:", ":"])
def test_a_transfer_names_two_directories(text: str) -> None:
    """The last colon is between them; one that says less is refused with what to write."""
    assert parse.transfers(["a:b", "c:d:/e"]) == (("a", "b"), ("c:d", "/e"))
    with pytest.raises(InvalidInput, match="write FROM:TO"):
        parse.transfers([text])


def test_what_is_no_pair_is_named_by_no_option() -> None:
    """Several options take pairs; the command line says before it which one it was."""
    with pytest.raises(InvalidInput, match=r"^'X': write NAME=VALUE$"):
        parse.environment(["A=1", "X"])
