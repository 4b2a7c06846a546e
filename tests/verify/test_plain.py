"""The codec of plain data: what crosses comes out the same, and no bytes make the decoder do anything else."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.verify.inside.plain import MAX_DEPTH, Malformed, NotPlain, decode, encode

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(1 << 3000), max_value=1 << 3000)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.binary().map(bytearray)
    | st.just(...)
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 5))
)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.sets(keys, max_size=5)
        | st.frozensets(keys, max_size=5)
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal, with equal types all the way down, NaN like NaN and 0.0 unlike -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left.items(), right.items(), strict=True))
    return bool(left == right)


@given(values)
@settings(deadline=None)
def test_every_plain_value_comes_out_as_it_went_in(value: Any) -> None:
    """Types, order of dicts, special floats and lone surrogates included."""
    assert same(decode(encode(value)), value)


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_never_raise_anything_but_malformed(data: bytes) -> None:
    """Whatever a hostile process sends."""
    try:
        decode(data)
    except Malformed:
        pass


@given(values, st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_encodings_never_raise_anything_but_malformed(value: Any, data: st.DataObject) -> None:
    """Bytes that are nearly right reach deeper into the decoder than noise does."""
    encoded = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        encoded[place] = data.draw(st.sampled_from(b"NTF.ifcsbaltdegrOCD\x00\x01\xff\x7f"))
    try:
        decode(bytes(encoded))
    except Malformed:
        pass


@given(values, st.integers(1, 10_000))
@settings(deadline=None)
def test_a_cut_encoding_is_malformed(value: Any, cut: int) -> None:
    """No prefix of a value is a value."""
    encoded = encode(value)
    with pytest.raises(Malformed):
        decode(encoded[: -min(cut, len(encoded))])


class Sub(int):
    """A subclass of a built-in type."""


class Colour(IntEnum):
    """An enumeration whose members are integers."""

    RED = 1


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "value",
    [
        Sub(1),
        Colour.RED,
        Pair(1, 2),
        object(),
        int,
        len,
        iter([]),
        {}.keys(),
        (i for i in "ab"),
        memoryview(b""),
        [{1: Sub(1)}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_of_an_exact_built_in_type_is_refused_by_name(value: object) -> None:
    """Subclasses could carry other behaviour, so they do not cross, wherever they are nested."""
    with pytest.raises(NotPlain, match=r"a value of type .*, which is not plain data"):
        encode(value)


def test_mappings_of_collections_cross() -> None:
    """They are what honest functions return; a factory that is code does not cross."""
    made = [Counter("abca"), OrderedDict([(2, 1), (1, 2)]), defaultdict(int, a=1), defaultdict(None, {1: 2})]
    found = decode(encode(made))
    assert [type(value) for value in found] == [type(value) for value in made]
    assert found == made
    assert found[2]["missing"] == 0
    assert decode(encode(defaultdict(lambda: 1, {1: 2}))).default_factory is None


def test_cycles_and_depth_are_refused() -> None:
    """On both sides."""
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotPlain, match="inside itself"):
        encode(cycle)
    deepest: Any = 0
    for _ in range(MAX_DEPTH):
        deepest = [deepest]
    assert decode(encode(deepest)) == deepest
    with pytest.raises(NotPlain):
        encode([deepest])
    with pytest.raises(Malformed):
        decode(b"l\x01\0\0\0" * 100_000 + b"N")


def test_sizes_are_limited_on_both_sides() -> None:
    """Neither a value nor a count that somebody announces can fill the memory."""
    for huge in ("x" * (9 << 20), [None] * 1_000_001, 1 << (8 << 21), [list(range(1000))] * 2000):
        with pytest.raises(NotPlain):
            encode(huge)
    for announced in (b"l\xff\xff\xff\xff", b"d\xff\xff\xff\x7f", b"s\xff\xff\xff\xff", b"i\xff\xff\xff\xff"):
        with pytest.raises(Malformed):
            decode(announced + b"N" * 100)
    with pytest.raises(Malformed):
        decode(b"l" + (1_000_000).to_bytes(4, "little") + b"N" * 1_000_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"NN",
        b"e\x01\0\0\0l\0\0\0\0",
        b"d\x02\0\0\0NNNN",
        b"e\x02\0\0\0TT",
        b"s\x01\0\0\0\xff",
        b"f\x03\0\0\0xyz",
        b"cNN",
        b"r\x01\0\0\0N",
        b"r\x03\0\0\0" + encode(0) * 3,
        b"ON",
        b"Ds\x04\0\0\0evald\0\0\0\0",
        b"Dl\0\0\0\0d\0\0\0\0",
    ],
)
def test_bytes_that_no_encoder_makes_are_malformed(data: bytes) -> None:
    """Unhashable keys, keys twice, text that is none, numbers that are none, a range with step 0, unknown factories."""
    with pytest.raises(Malformed):
        decode(data)
