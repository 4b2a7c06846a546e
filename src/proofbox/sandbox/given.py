"""What callers give, checked and turned into bytes. Everything wrong with it is an ``InvalidInput`` before anything
starts.

Text is UTF-8; names that are not UTF-8 travel as ``bytes``, or as ``str`` with surrogate escapes as ``os.fsdecode``
makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from proofbox.errors import InvalidInput

PATH_MOST: Final = 4095
ARGS_MOST: Final = 65_536
SECONDS_MOST: Final = 10 * 366 * 86_400.0


def as_bytes(value: object, what: str) -> bytes:
    """Without NUL."""
    if isinstance(value, str):
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{what} holds {value[error.start]!r}, which no encoding of text has") from None
    elif isinstance(value, bytes):
        raw = value
    else:
        raise InvalidInput(f"{what} must be str or bytes, not {type(value).__name__}")
    if b"\0" in raw:
        raise InvalidInput(f"{what} holds a NUL byte at {raw.index(0)}: {raw[:60]!r}")
    return raw


def as_path(path: str | bytes, what: str = "path") -> bytes:
    """A path inside; relative ones start at the working directory."""
    raw = as_bytes(path, what)
    if not raw:
        raise InvalidInput(f"{what} is empty")
    if len(raw) > PATH_MOST:
        raise InvalidInput(f"{what} has {len(raw)} bytes; the kernel takes {PATH_MOST}")
    return raw


def as_args(command: object) -> tuple[bool, tuple[bytes, ...]]:
    """(is shell text, arguments)."""
    if isinstance(command, str):
        text = as_bytes(command, "command")
        if not text.strip():
            raise InvalidInput("the command is empty")
        return True, (text,)
    if isinstance(command, (bytes, bytearray)) or not isinstance(command, Sequence):
        raise InvalidInput(f"a command is shell text (str) or a sequence of arguments, not {type(command).__name__}")
    if not command or not command[0]:
        raise InvalidInput("the command has no program: its first argument is empty or missing")
    if len(command) > ARGS_MOST:
        raise InvalidInput(f"the command has {len(command)} arguments; at most {ARGS_MOST} are allowed")
    return False, tuple([as_bytes(arg, "an argument of the command") for arg in command])


def as_env(env: Mapping[str, str] | None) -> dict[bytes, bytes]:
    """Names have at least one byte and no "="."""
    found: dict[bytes, bytes] = {}
    for name, value in (env or {}).items():
        key = as_bytes(name, "the name of an environment variable")
        if not key or b"=" in key:
            raise InvalidInput(f"environment variable {name!r}: a name is not empty and has no '='")
        found[key] = as_bytes(value, f"environment variable {name!r}")
    return found


def as_user(user: str) -> bytes:
    """``name``, ``uid``, ``name:group`` or ``uid:gid``; whether it exists is for the sandbox to say."""
    raw = as_bytes(user, "user")
    if not raw or raw.startswith(b":") or raw.endswith(b":") or raw.count(b":") > 1 or b"\n" in raw or len(raw) > 128:
        raise InvalidInput(f"user {user!r} is not one of: name, uid, name:group, uid:gid")
    return raw


def is_root(user: bytes) -> bool:
    """One that every sandbox has, also where a single id is mapped."""
    name, _, group = user.partition(b":")
    return name in (b"root", b"0") and group in (b"", b"root", b"0")


def as_seconds(value: object, what: str, *, zero: bool = False) -> float:
    """More than 0 (or 0 where ``zero``), and finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise InvalidInput(f"{what} must be a number of seconds, not {value!r}")
    if value < 0 or (value == 0 and not zero) or value > SECONDS_MOST:
        raise InvalidInput(
            f"{what} must be {'at least' if zero else 'more than'} 0 s and at most ten years, not {value!r}"
        )
    return float(value)


def as_count(value: object, what: str, most: int = (1 << 63) - 1, least: int = 0) -> int:
    """A whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{what} must be a whole number from {least} to {most}, not {value!r}")
    return value


def as_data(data: object, what: str) -> bytes:
    """Bytes, or text as UTF-8."""
    if isinstance(data, str):
        try:
            return data.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{what} holds {data[error.start]!r}, which no encoding of text has") from None
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise InvalidInput(f"{what} must be bytes or str, not {type(data).__name__}")
