"""Text of a person to values: "512M", "30s", "memory=1G". Here and nowhere else; inside there are bytes and seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from proofbox.errors import InvalidInput
from proofbox.model.limits import LIMIT_KINDS, LimitKind, Limits, Walls
from proofbox.model.spec import Volume

BINARY: Final = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""Powers of 1,024, as memory is counted."""
TIMES: Final = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0}
SIZES: Final[frozenset[LimitKind]] = frozenset({"memory", "memory_reserve", "process_memory", "disk", "output"})
SECONDS: Final[frozenset[LimitKind]] = frozenset({"wall", "idle", "command_wall", "cpu_time", "command_cpu_time"})
AGENTS: Final = ("reference", "nop")
PARTS: Final = tuple(name.removesuffix("_wall") for name in Walls.__struct_fields__)

T = TypeVar("T")

NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def split(text: str) -> tuple[str, str] | None:
    """The number and the unit of ``text``; None if it is not a number with at most one word behind it."""
    found = NUMBER.fullmatch(text.strip())
    return (found[1], found[2]) if found else None


def size(text: str) -> int:
    """Bytes: "512M", "1.5G", "4096", "1GiB". Raises ``InvalidInput``."""
    parts = split(text)
    if parts:
        number, unit = parts
        factor = BINARY.get(unit.upper().removesuffix("IB") if unit.upper() != "IB" else unit)
        if factor is not None and (amount := int(float(number) * factor)) > 0:
            return amount
    raise InvalidInput(f"{text!r} is not a size above 0; write bytes, or a number with K, M, G or T, such as 512M")


def seconds(text: str) -> float:
    """Seconds: "30s", "500ms", "2m", "1.5h", "90". Raises ``InvalidInput``."""
    parts = split(text)
    if parts and parts[1] in TIMES and (amount := float(parts[0]) * TIMES[parts[1]]) > 0:
        return amount
    raise InvalidInput(f"{text!r} is not a time above 0; write seconds, or a number with ms, s, m or h, such as 30s")


def count(text: str) -> int:
    """A whole number above 0, as it is. Raises ``InvalidInput``."""
    if re.fullmatch(r"[0-9]+", text.strip()) and (amount := int(text)) > 0:
        return amount
    raise InvalidInput(f"{text!r} is not a whole number above 0")


def processors(text: str) -> float:
    """Processors: "2", "0.5". Raises ``InvalidInput``."""
    parts = split(text)
    if parts and not parts[1] and (amount := float(parts[0])) > 0:
        return amount
    raise InvalidInput(f"{text!r} is not a number of processors above 0, such as 2 or 0.5")


def limits(given: Iterable[str]) -> Limits | None:
    """``["memory=512M", "wall=30s"]`` to limits; the last of a kind counts. None for none. Raises ``InvalidInput``."""
    found: dict[str, Any] = {}
    for text in given:
        kind, equals, value = text.partition("=")
        kind = kind.strip().replace("-", "_")
        if not equals or kind not in LIMIT_KINDS:
            raise InvalidInput(f"--limit {text!r}: write KIND=VALUE with one of {', '.join(LIMIT_KINDS)}")
        try:
            found[kind] = _amount(kind, value)
        except InvalidInput as wrong:
            raise InvalidInput(f"--limit {kind}: {wrong}") from None
    return Limits(**found) if found else None


def walls(given: Iterable[str]) -> Walls | None:
    """``["agent=10m", "trial=1h"]`` to walls; the last of a part counts. None for none. Raises ``InvalidInput``."""
    found: dict[str, float] = {}
    for text in given:
        part, equals, value = text.partition("=")
        if not equals or part.strip() not in PARTS:
            raise InvalidInput(f"--wall {text!r}: write PART=TIME with one of {', '.join(PARTS)}")
        found[f"{part.strip()}_wall"] = seconds(value)
    return Walls(**found) if found else None


def show_walls(given: Walls) -> str:
    """The walls of every scope, for a person, in one line."""
    values = ((part, getattr(given, f"{part}_wall")) for part in PARTS)
    return ", ".join(f"{part} {'none' if value is None else f'{value:g} s'}" for part, value in values)


def _amount(kind: LimitKind, value: str) -> float:
    if kind in SIZES:
        return size(value)
    if kind in SECONDS:
        return seconds(value)
    return processors(value) if kind == "cpus" else count(value)


def agent(text: str) -> str:
    """A built-in agent's name, or "script:FILE" with the file's absolute path. Raises ``InvalidInput``."""
    if text in AGENTS:
        return text
    kind, colon, path = text.partition(":")
    if kind == "script" and colon and os.path.isfile(path):
        return f"script:{os.path.abspath(path)}"
    raise InvalidInput(f"{text!r} is neither {' nor '.join(AGENTS)} nor script:FILE with a file that is there")


def environment(given: Iterable[str]) -> dict[str, str]:
    """``["NAME=VALUE"]`` to a mapping; a value may hold anything. Raises ``InvalidInput``."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInput(f"{text!r}: write NAME=VALUE")
        found[name] = value
    return found


def volumes(given: Iterable[str]) -> tuple[Volume, ...]:
    """``["SOURCE:TARGET"]``; the last colon counts, the source becomes absolute. Raises ``InvalidInput``."""
    found = []
    for text in given:
        source, colon, target = text.rpartition(":")
        if not colon or not source or not target.startswith("/"):
            raise InvalidInput(f"--volume {text!r}: write SOURCE:TARGET, with an absolute path as target")
        found.append(Volume(os.path.abspath(source), target))
    return tuple(found)


def transfers(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """``["FROM:TO"]`` to pairs; the last colon counts. Raises ``InvalidInput``."""
    found = []
    for text in given:
        source, _, target = text.rpartition(":")
        if not source or not target:
            raise InvalidInput(f"{text!r}: write FROM:TO, two directories with a colon between them")
        found.append((source, target))
    return tuple(found)


def show_size(amount: float) -> str:
    """Bytes for a person: 536870912 is "512 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def show_limits(given: Limits) -> str:
    """The limits that are set, for a person, in one line."""
    shown = []
    for kind in given.asked():
        value = getattr(given, kind)
        text = show_size(value) if kind in SIZES else f"{value:g} s" if kind in SECONDS else f"{value:g}"
        shown.append(f"{kind.replace('_', ' ')} {text}")
    return ", ".join(shown) or "none"


def whole_numbers(text: str) -> tuple[int, ...]:
    """ "1,10,100" to (1, 10, 100). Raises ``InvalidInput``."""
    return tuple(count(part) for part in text.split(","))


def parsed(parse: Callable[[Any], T]) -> Callable[[click.Context, click.Parameter, Any], T | None]:
    """An option's callback: what was given through ``parse``; what that refuses is a usage error which names it."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> T | None:
        if value is None:
            return None
        try:
            return parse(value)
        except InvalidInput as wrong:
            raise click.BadParameter(str(wrong), ctx, param) from None

    return callback
