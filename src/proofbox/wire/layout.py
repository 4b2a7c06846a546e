"""Layouts: how a frozen value becomes the fields of a message, and back, strictly."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from proofbox.wire.frames import FIELD, WireError, decode_fields

MAX_VALUES: Final = 65_536

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. ``form`` is a struct format of fixed size, "text", "bytes" or "bool"."""

    tag: int
    name: str
    form: str
    repeats: bool = False
    required: bool = False


class _Codec:
    """One field made ready: its place among the struct's values, its default, and how one value travels."""

    __slots__ = ("default", "field", "name", "place", "struct", "where")

    def __init__(self, field: Field, make: str, place: int, default: Any) -> None:
        fixed = field.form not in ("text", "bytes", "bool")
        self.field = field
        self.name = field.name
        self.place = place
        self.default = default
        self.where = f"{make}.{field.name}"
        self.struct = struct.Struct("<" + field.form) if fixed else None

    def pack(self, item: Any) -> bytes:
        """Header and value."""
        form = self.field.form
        if self.struct is not None:
            try:
                raw = self.struct.pack(*item) if isinstance(item, tuple) else self.struct.pack(item)
            except struct.error as error:
                raise WireError(f"{self.where} cannot be {item!r}: {error}") from None
        elif form == "bool":
            raw = b"\1" if item else b"\0"
        else:
            raw = bytes(item)
            if form == "text" and b"\0" in raw:
                raise WireError(f"{self.where} holds a NUL byte: {raw[:60]!r}")
        return FIELD.pack(self.field.tag, len(raw)) + raw

    def unpack(self, raw: bytes) -> Any:
        """The value. Raises ``WireError``."""
        form = self.field.form
        if self.struct is not None:
            if len(raw) != self.struct.size:
                raise WireError(f"{self.where} has {len(raw)} bytes, not {self.struct.size}")
            got = self.struct.unpack(raw)
            return got[0] if len(got) == 1 else got
        if form == "text" and b"\0" in raw:
            raise WireError(f"{self.where} holds a NUL byte")
        if form == "bool":
            if raw not in (b"\0", b"\1"):
                raise WireError(f"{self.where} is {raw[:8]!r}, not 0 or 1")
            return raw == b"\1"
        return raw


class Layout(Generic[T]):
    """How one message's value becomes fields and back. Fields that hold their default are not sent."""

    __slots__ = ("_codecs", "_make", "_required", "_tags")

    def __init__(self, make: type[T], *fields: Field) -> None:
        self._make = make
        self._required = tuple(field for field in fields if field.required)
        info = msgspec.structs.fields(make)
        places = {field.name: place for place, field in enumerate(info)}
        self._codecs = tuple(
            _Codec(field, make.__name__, places[field.name], info[places[field.name]].default) for field in fields
        )
        self._tags = {codec.field.tag: codec for codec in self._codecs}

    def encode(self, value: T) -> bytes:
        """The payload. Raises ``WireError`` for a value that its field cannot hold."""
        values = msgspec.structs.astuple(value)
        out: list[bytes] = []
        for codec in self._codecs:
            got = values[codec.place]
            if not codec.field.required and (got is codec.default or got == codec.default):
                continue
            if codec.field.repeats:
                out += map(codec.pack, got)
            else:
                out.append(codec.pack(got))
        return b"".join(out)

    def decode(self, payload: bytes) -> T:
        """The value. Raises ``WireError`` for unknown, repeated, missing and malformed fields."""
        values: dict[str, Any] = {}
        repeated: dict[str, list[Any]] = {}
        for tag, raw in decode_fields(payload):
            codec = self._tags.get(tag)
            if codec is None:
                raise WireError(f"{self._make.__name__} has no field {tag}")
            name = codec.name
            if codec.field.repeats:
                items = repeated.setdefault(name, [])
                if len(items) >= MAX_VALUES:
                    raise WireError(f"{self._make.__name__}: more than {MAX_VALUES} of field {tag}")
                items.append(codec.unpack(raw))
            elif name in values:
                raise WireError(f"{self._make.__name__}: field {tag} is there twice")
            else:
                values[name] = codec.unpack(raw)
        for name, items in repeated.items():
            values[name] = tuple(items)
        for field in self._required:
            if field.name not in values:
                raise WireError(f"{self._make.__name__}: field {field.tag} ({field.name}) is missing")
        return self._make(**values)
