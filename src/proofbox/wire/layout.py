"""Layouts: how a frozen value becomes the fields of a message, and back, strictly."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from proofbox.wire.frames import WireError, decode_fields, encode_fields

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


class Layout(Generic[T]):
    """How one message's value becomes fields and back. Fields that hold their default are not sent."""

    __slots__ = ("_defaults", "_fields", "_make", "_required", "_structs", "_tags")

    def __init__(self, make: type[T], *fields: Field) -> None:
        self._make = make
        self._fields = fields
        self._tags = {field.tag: field for field in fields}
        self._required = tuple(field for field in fields if field.required)
        self._structs = {f.tag: struct.Struct("<" + f.form) for f in fields if f.form not in ("text", "bytes", "bool")}
        info = msgspec.structs.fields(make)
        self._defaults: dict[str, Any] = {field.name: field.default for field in info}

    def encode(self, value: T) -> bytes:
        """The payload. Raises ``WireError`` for a value that its field cannot hold."""
        out: list[tuple[int, bytes]] = []
        for field in self._fields:
            got = getattr(value, field.name)
            if not field.required and got == self._defaults[field.name]:
                continue
            out += [(field.tag, self._pack(field, item)) for item in (got if field.repeats else (got,))]
        return encode_fields(out)

    def decode(self, payload: bytes) -> T:
        """The value. Raises ``WireError`` for unknown, repeated, missing and malformed fields."""
        values: dict[str, Any] = {}
        repeated: dict[str, list[Any]] = {}
        for tag, raw in decode_fields(payload):
            field = self._tags.get(tag)
            if field is None:
                raise WireError(f"{self._make.__name__} has no field {tag}")
            item = self._unpack(field, raw)
            if field.repeats:
                items = repeated.setdefault(field.name, [])
                if len(items) >= MAX_VALUES:
                    raise WireError(f"{self._make.__name__}: more than {MAX_VALUES} of field {tag}")
                items.append(item)
            elif field.name in values:
                raise WireError(f"{self._make.__name__}: field {tag} is there twice")
            else:
                values[field.name] = item
        for name, items in repeated.items():
            values[name] = tuple(items)
        for field in self._required:
            if field.name not in values:
                raise WireError(f"{self._make.__name__}: field {field.tag} ({field.name}) is missing")
        return self._make(**values)

    def _pack(self, field: Field, item: Any) -> bytes:
        if field.form == "bool":
            return b"\1" if item else b"\0"
        if field.form == "bytes" or field.form == "text":
            raw = bytes(item)
            if field.form == "text" and b"\0" in raw:
                raise WireError(f"{self._make.__name__}.{field.name} holds a NUL byte: {raw[:60]!r}")
            return raw
        packer = self._structs[field.tag]
        try:
            return packer.pack(*item) if isinstance(item, tuple) else packer.pack(item)
        except struct.error as error:
            raise WireError(f"{self._make.__name__}.{field.name} cannot be {item!r}: {error}") from None

    def _unpack(self, field: Field, raw: bytes) -> Any:
        if field.form == "bytes":
            return raw
        if field.form == "text":
            if b"\0" in raw:
                raise WireError(f"{self._make.__name__}.{field.name} holds a NUL byte")
            return raw
        if field.form == "bool":
            if raw not in (b"\0", b"\1"):
                raise WireError(f"{self._make.__name__}.{field.name} is {raw[:8]!r}, not 0 or 1")
            return raw == b"\1"
        packer = self._structs[field.tag]
        if len(raw) != packer.size:
            raise WireError(f"{self._make.__name__}.{field.name} has {len(raw)} bytes, not {packer.size}")
        got = packer.unpack(raw)
        return got[0] if len(got) == 1 else got
