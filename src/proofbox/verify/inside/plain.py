"""Plain data as bytes: Python's literal types, nested, and nothing that could carry code.

What crosses: None, bool, int, float (nan, infinities and -0.0 exactly), complex, str (lone surrogates too), bytes,
bytearray, tuple, list, dict (any plain key, in order), set, frozenset, range, Ellipsis, and of ``collections``
Counter, OrderedDict and defaultdict (its factory if that is a built-in type). Types are exact: a subclass is not plain.
Not carried: that two places held the same object, and the order of a set.

One value is a tag byte and what the tag says. Lengths are four bytes, little-endian. The decoder treats its input as
hostile: only ``Malformed`` ever escapes it (and ``MemoryError``), and it never makes more than ``MAX_ITEMS`` values.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_BYTES = 8 << 20
MAX_ITEMS = 1_000_000
MAX_DEPTH = 100
MAX_INT = 1 << 20
"""Bytes of one integer."""

FACTORIES = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)}


class NotPlain(Exception):
    """A value is not plain data. The text goes after "returned": ``a value of type X, which is not plain data``."""


class Malformed(Exception):
    """Bytes that no encoder makes."""


def _name(kind: type) -> str:
    name = kind.__name__
    return name[:80] if type(name) is str else "?"


class _Writer:
    """Collects the bytes of one value."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.items = 0

    def sized(self, tag: bytes, data: bytes | bytearray) -> None:
        self.out += tag
        self.out += len(data).to_bytes(4, "little")
        self.out += data

    def many(self, tag: bytes, values: Iterable[Any], count: int, depth: int) -> None:
        self.out += tag
        self.out += count.to_bytes(4, "little")
        for value in values:
            self.put(value, depth + 1)

    def pairs(self, tag: bytes, value: dict[Any, Any], depth: int) -> None:
        self.out += tag
        self.out += dict.__len__(value).to_bytes(4, "little")
        for key, item in dict.items(value):
            self.put(key, depth + 1)
            self.put(item, depth + 1)

    def put(self, value: Any, depth: int) -> None:
        self.items += 1
        if self.items > MAX_ITEMS or len(self.out) > MAX_BYTES:
            raise NotPlain(f"more than {MAX_BYTES >> 20} MiB or {MAX_ITEMS} values")
        if depth > MAX_DEPTH:
            raise NotPlain(f"data nested deeper than {MAX_DEPTH} levels, or inside itself")
        kind = type(value)
        write = _WRITERS.get(kind)
        if write is not None:
            write(self, value, depth)
        elif kind is list or kind is tuple:
            self.many(b"l" if kind is list else b"t", value, len(value), depth)
        elif kind is dict:
            self.pairs(b"d", value, depth)
        elif kind is set or kind is frozenset:
            self.many(b"e" if kind is set else b"g", value, len(value), depth)
        elif not self.put_collection(kind, value, depth):
            raise NotPlain(f"a value of type {_name(kind)}, which is not plain data")

    def put_collection(self, kind: type, value: Any, depth: int) -> bool:
        """The mappings of ``collections``, only if the program has imported it. False if it is none of them."""
        module = sys.modules.get("collections")
        if module is None:
            return False
        if kind is module.OrderedDict:
            self.out += b"O"
            self.many(b"t", [*value.items()], len(value), depth)
        elif kind is module.Counter:
            self.pairs(b"C", value, depth)
        elif kind is module.defaultdict:
            factory = value.default_factory
            named = [name for name, builtin in FACTORIES.items() if factory is builtin]
            self.out += b"D"
            self.put(named[0] if named else None, depth + 1)
            self.pairs(b"d", value, depth)
        else:
            return False
        return True


def _put_int(writer: _Writer, value: int, depth: int) -> None:
    size = value.bit_length() // 8 + 1
    if size > MAX_INT:
        raise NotPlain(f"an integer of more than {MAX_INT >> 20} MiB")
    writer.sized(b"i", value.to_bytes(size, "little", signed=True))


def _put_complex(writer: _Writer, value: complex, depth: int) -> None:
    writer.out += b"c"
    writer.put(value.real, depth + 1)
    writer.put(value.imag, depth + 1)


def _put_range(writer: _Writer, value: range, depth: int) -> None:
    writer.many(b"r", (value.start, value.stop, value.step), 3, depth)


_WRITERS: dict[type, Callable[[_Writer, Any, int], None]] = {
    type(None): lambda writer, value, depth: writer.out.extend(b"N"),
    bool: lambda writer, value, depth: writer.out.extend(b"T" if value else b"F"),
    type(...): lambda writer, value, depth: writer.out.extend(b"."),
    int: _put_int,
    float: lambda writer, value, depth: writer.sized(b"f", value.hex().encode()),
    complex: _put_complex,
    str: lambda writer, value, depth: writer.sized(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda writer, value, depth: writer.sized(b"b", value),
    bytearray: lambda writer, value, depth: writer.sized(b"a", value),
    range: _put_range,
}


def encode(value: Any) -> bytes:
    """The bytes of a plain value. Raises ``NotPlain`` for anything else, for cycles, and above the limits above."""
    writer = _Writer()
    writer.put(value, 0)
    if len(writer.out) > MAX_BYTES:
        raise NotPlain(f"more than {MAX_BYTES >> 20} MiB or {MAX_ITEMS} values")
    return bytes(writer.out)


class _Reader:
    """Takes one value from bytes that may be hostile."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise Malformed(f"{size} bytes announced at byte {self.at}, {len(self.data) - self.at} are there")
        part = self.data[self.at : end]
        self.at = end
        return part

    def size(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def get(self, depth: int) -> Any:
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise Malformed(f"deeper than {MAX_DEPTH} levels or more than {MAX_ITEMS} values")
        tag = self.take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _SCALARS:
            data = self.take(self.size())
            if len(data) > MAX_INT and tag in b"if":
                raise Malformed(f"a number of {len(data)} bytes")
            return _SCALARS[tag](data)
        if tag in _GROUPS:
            return self.group(tag, depth)
        if tag in b"dC":
            return self.mapping(tag, depth)
        return self.composed(tag, depth)

    def many(self, count: int, depth: int) -> list[Any]:
        if count > len(self.data) - self.at:
            raise Malformed(f"{count} values announced at byte {self.at}, {len(self.data) - self.at} bytes are there")
        return [self.get(depth + 1) for _ in range(count)]

    def group(self, tag: bytes, depth: int) -> Any:
        values = self.many(self.size(), depth)
        made = _GROUPS[tag](values)
        if len(made) != len(values):
            raise Malformed("a set with the same value twice")
        return made

    def mapping(self, tag: bytes, depth: int) -> dict[Any, Any]:
        count = self.size()
        flat = self.many(2 * count, depth)
        made = dict(zip(flat[::2], flat[1::2]))  # noqa: B905 - strict= is not in Python 3.8
        if len(made) != count:
            raise Malformed("a dict with the same key twice")
        if tag == b"C":
            from collections import Counter

            return Counter(made)
        return made

    def composed(self, tag: bytes, depth: int) -> Any:
        if tag == b"c":
            real, imaginary = self.get(depth + 1), self.get(depth + 1)
            if type(real) is float and type(imaginary) is float:
                return complex(real, imaginary)
        elif tag == b"r":
            bounds = self.many(self.size(), depth)
            if len(bounds) == 3 and all(type(bound) is int for bound in bounds):
                return range(*bounds)
        elif tag == b"O":
            from collections import OrderedDict

            items = self.get(depth)
            if type(items) is tuple and all(type(item) is tuple and len(item) == 2 for item in items):
                made = OrderedDict(items)
                if len(made) == len(items):
                    return made
        elif tag == b"D":
            from collections import defaultdict

            factory, values = self.get(depth + 1), self.get(depth)
            if type(values) is dict and (factory is None or factory in FACTORIES):
                return defaultdict(None if factory is None else FACTORIES[factory], values)
        raise Malformed(f"no value starts with {tag!r} at byte {self.at}")


_CONSTANTS: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False, b".": ...}
_SCALARS: dict[bytes, Callable[[bytes], Any]] = {
    b"i": lambda data: int.from_bytes(data, "little", signed=True),
    b"f": lambda data: float.fromhex(data.decode("ascii")),
    b"s": lambda data: data.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"a": bytearray,
}
_GROUPS: dict[bytes, Callable[[list[Any]], Any]] = {b"l": list, b"t": tuple, b"e": set, b"g": frozenset}


def decode(data: bytes) -> Any:
    """The value of bytes that ``encode`` made. Raises ``Malformed`` for all others, whatever they are."""
    reader = _Reader(data)
    try:
        value = reader.get(0)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # Text that is not UTF-8, an unhashable key, a range with step 0, a number out of range.
        raise Malformed(f"byte {reader.at}: {type(error).__name__}") from None
    if reader.at != len(data):
        raise Malformed(f"{len(data) - reader.at} bytes after the value")
    return value
