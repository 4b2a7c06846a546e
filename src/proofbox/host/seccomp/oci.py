"""The same policy in the form that OCI runtimes read (``linux.seccomp``).

Two differences, both forced by the format: "none of these values" becomes the list of bit patterns that are left,
because the format compares 64 bits and a value with upper bits set, which the kernel would cut off, must not slip
through; and
where a rule does not hold, its own errno is said by entries for the values that are left of its first condition, and of
the second one where there is one. What they miss fails with the default errno: an errno is manners, not protection.
"""

from __future__ import annotations

import itertools
from typing import Any

from proofbox.host.seccomp.policy import Condition, Policy, Rule, numbers

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_WORD = 0xFFFFFFFF


def oci_profile(policy: Policy, machine: str) -> dict[str, Any]:
    """The value of ``linux.seccomp`` in an OCI bundle's ``config.json`` for that machine."""
    known = numbers(machine)
    by_errno: dict[int, list[str]] = {}
    rules: list[dict[str, Any]] = []
    for name, verdict in sorted(policy.verdicts.items()):
        if name not in known:
            continue
        if isinstance(verdict, Rule):
            rules += _rule(name, verdict)
        else:
            by_errno.setdefault(verdict, []).append(name)
    plain: list[dict[str, Any]] = []
    for number, names in sorted(by_errno.items()):
        plain.append(_entry(names, "SCMP_ACT_ERRNO", errnoRet=number) if number else _entry(names, "SCMP_ACT_ALLOW"))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": policy.default,
        "architectures": [_ARCHITECTURES[machine]],
        "syscalls": [*plain, *rules],
    }


def _entry(names: list[str], action: str, **more: Any) -> dict[str, Any]:
    return {"names": names, "action": action, **more}


def _rule(name: str, rule: Rule) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for alternative in rule.alternatives:
        choices = itertools.product(*(_holding(one) for one in alternative))
        entries += [_entry([name], "SCMP_ACT_ALLOW", args=list(args)) for args in choices]
    return [*entries, *_refusals(name, rule)]


def _refusals(name: str, rule: Rule) -> list[dict[str, Any]]:
    """Programs go by the errno: shadow's tools, for one, give up where an audit socket fails with another than this."""
    first = [alternative[0] for alternative in rule.alternatives]
    if len({one.arg for one in first}) != 1 or (len(first) > 1 and not all(one.any_of for one in first)):
        return []
    if len(first) > 1:
        left = [[one] for one in _others(first[0].arg, tuple(v for one in first for v in one.any_of))]
    else:
        left = [[one] for one in _failing(first[0])]
    for alternative in rule.alternatives:
        if len(alternative) == 2:
            one, other = alternative
            left += [[holds, fails] for holds in _holding(one) for fails in _failing(other)]
    return [_entry([name], "SCMP_ACT_ERRNO", errnoRet=rule.errno, args=args) for args in left]


def _failing(condition: Condition) -> list[dict[str, Any]]:
    """Arguments that do not fulfil it, each for itself."""
    if condition.zero:
        return [{"index": condition.arg, "value": 0, "op": "SCMP_CMP_NE"}]
    if condition.clear:
        return [_masked(condition.arg, 1 << bit, 1 << bit) for bit in range(32) if condition.clear >> bit & 1]
    if condition.any_of:
        return _others(condition.arg, condition.any_of)
    return [_masked(condition.arg, _WORD, value) for value in condition.none_of]


def _holding(condition: Condition) -> list[dict[str, Any]]:
    """Arguments that fulfil it, each for itself."""
    if condition.zero:
        return [{"index": condition.arg, "value": 0, "op": "SCMP_CMP_EQ"}]
    if condition.clear:
        return [_masked(condition.arg, condition.clear, 0)]
    if condition.any_of:
        return [_masked(condition.arg, _WORD, value) for value in condition.any_of]
    return _others(condition.arg, condition.none_of)


def _masked(arg: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": arg, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _others(arg: int, values: tuple[int, ...]) -> list[dict[str, Any]]:
    """Every word but ``values``: for each prefix of one of them, the sibling that leads to none."""
    found: list[dict[str, Any]] = []
    for bit in reversed(range(32)):
        mask = _WORD >> bit << bit
        prefixes = {value & mask for value in values}
        siblings = sorted({prefix ^ (1 << bit) for prefix in prefixes} - prefixes)
        found += [_masked(arg, mask, sibling) for sibling in siblings]
    return found
