"""The policy of ``policy.toml`` as values, and the system call numbers of each machine."""

from __future__ import annotations

import errno
import functools
import json
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from proofbox.errors import InvalidInput

MACHINES: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's AUDIT_ARCH value of each machine that there are numbers for."""

PRETEND: Final = "PRETEND"
"""In a rule, instead of the name of an error: the call does nothing and says that it worked."""

_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for argument ``arg``; exactly one of the four is given. All but ``zero`` see its low 32 bits."""

    arg: int
    any_of: tuple[int, ...] = ()
    none_of: tuple[int, ...] = ()
    clear: int = 0
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """Allowed where all conditions of one of ``alternatives`` hold, else ``errno``; 0: not done, and called done."""

    errno: int
    alternatives: tuple[tuple[Condition, ...], ...]


Verdict = int | Rule
"""What a call gets: 0 allowed, an errno, or a rule on its arguments."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``verdicts`` by name; what is not in it fails with ``default``, an errno."""

    default: int
    verdicts: Mapping[str, Verdict]


def machine() -> str:
    """This machine's name as in ``MACHINES``. Raises ``InvalidInput`` if there are no numbers for it."""
    name = platform.machine()
    if name not in MACHINES:
        raise InvalidInput(f"no system call numbers for machine {name!r}; there are some for {', '.join(MACHINES)}")
    return name


@functools.cache
def numbers(of_machine: str) -> Mapping[str, int]:
    """System call numbers by name."""
    table: dict[str, dict[str, int]] = json.loads(_data("syscalls.json"))
    return table[of_machine]


@functools.cache
def policy() -> Policy:
    """The policy. Raises ``InvalidInput`` where the file names a call twice or one that no machine has."""
    return parse(_data("policy.toml"))


def parse(text: str) -> Policy:
    """A policy from the text of a policy file."""
    table = tomllib.loads(text)
    verdicts: dict[str, Verdict] = {}
    for entry in table.get("allow", []):
        for name in entry["calls"]:
            _add(verdicts, name, 0)
    for entry in table.get("deny", []):
        for name in entry["calls"]:
            _add(verdicts, name, _errno(entry["errno"]))
    for entry in table.get("rule", []):
        alternatives = tuple(tuple(_condition(item) for item in alternative) for alternative in entry["allow"])
        refusal = 0 if entry["errno"] == PRETEND else _errno(entry["errno"])
        _add(verdicts, entry["call"], Rule(refusal, alternatives))
    return Policy(_errno(table["default"]), verdicts)


def _add(verdicts: dict[str, Verdict], name: str, verdict: Verdict) -> None:
    if name in verdicts:
        raise InvalidInput(f"seccomp policy: {name} is named twice")
    if not any(name in numbers(each) for each in MACHINES):
        raise InvalidInput(f"seccomp policy: no machine has a system call {name!r}")
    verdicts[name] = verdict


def _errno(name: str) -> int:
    number = getattr(errno, name, None)
    if not isinstance(number, int):
        raise InvalidInput(f"seccomp policy: {name!r} is not the name of an error")
    return number


def _condition(item: dict[str, Any]) -> Condition:
    kinds = {"in", "not_in", "clear", "zero"} & item.keys()
    if len(kinds) != 1 or not 0 <= item["arg"] <= 5 or item.keys() - kinds != {"arg"} or not item.get("zero", True):
        raise InvalidInput(f"seccomp policy: {item} needs arg 0 to 5 and one of in, not_in, clear, zero = true")
    values = (*item.get("in", ()), *item.get("not_in", ()), item.get("clear", 0))
    if any(not 0 <= value <= _WORD for value in values):
        raise InvalidInput(f"seccomp policy: {item} has a value of more than 32 bits")
    any_of, none_of = tuple(item.get("in", ())), tuple(item.get("not_in", ()))
    return Condition(item["arg"], any_of, none_of, item.get("clear", 0), "zero" in kinds)


def _data(name: str) -> str:
    return resources.files("proofbox.host.seccomp").joinpath(name).read_text(encoding="utf-8")
