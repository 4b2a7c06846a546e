"""A policy compiled to the kernel's classic BPF: a binary search over the numbers, then the rule of that call.

The kernel runs it for each system call that is not always allowed (those it remembers in a bitmap since 5.11).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from proofbox.host.seccomp.policy import MACHINES, Condition, Policy, Rule, Verdict, numbers

LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
JUMP: Final = 0x05  # BPF_JMP | BPF_JA
JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JUMP_ANY_SET: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN: Final = 0x06  # BPF_RET | BPF_K

ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000

_NUMBER: Final = 0  # offsets in struct seccomp_data
_ARCH: Final = 4
_ARGS: Final = 16  # the low half of each is first: both machines are little-endian
_FAR: Final = 255


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``jt`` and ``jf`` say how many instructions are skipped if it holds or not."""

    code: int
    k: int
    jt: int = 0
    jf: int = 0


def compile_filter(policy: Policy, machine: str) -> bytes:
    """The program for that machine, as an array of ``struct sock_filter``.

    A call through another ABI of the machine (i386 and x32 on x86_64) fails with the default errno: the numbers mean
    something else there. (x32 numbers have bit 30 set, which is past every number that the policy names.)
    """
    table = numbers(machine)
    calls = {table[name]: verdict for name, verdict in policy.verdicts.items() if name in table}
    refuse = Instruction(RETURN, ERRNO | policy.default)
    body = [Instruction(LOAD, _NUMBER), *_search(_ranges(calls, policy.default))]
    start = [Instruction(LOAD, _ARCH), Instruction(JUMP_EQUAL, MACHINES[machine], jt=1), refuse]
    return b"".join(struct.pack("=HBBI", one.code, one.jt, one.jf, one.k) for one in [*start, *body])


def _ranges(calls: dict[int, Verdict], default: int) -> list[tuple[int, Verdict]]:
    """First number and verdict of each run of numbers with the same verdict; everything from 0 up is in one of them."""
    found: list[tuple[int, Verdict]] = []
    for number in range(max(calls) + 2):
        verdict = calls.get(number, default)
        if not found or found[-1][1] != verdict:
            found.append((number, verdict))
    return found


def _search(ranges: list[tuple[int, Verdict]]) -> list[Instruction]:
    if len(ranges) == 1:
        return _verdict(ranges[0][1])
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    pivot = ranges[middle][0]
    if len(lower) <= _FAR:
        return [Instruction(JUMP_AT_LEAST, pivot, jt=len(lower)), *lower, *upper]
    return [Instruction(JUMP_AT_LEAST, pivot, jf=1), Instruction(JUMP, len(lower)), *lower, *upper]


def _verdict(verdict: Verdict) -> list[Instruction]:
    if not isinstance(verdict, Rule):
        return [Instruction(RETURN, ERRNO | verdict if verdict else ALLOW)]
    code: list[Instruction] = []
    for alternative in verdict.alternatives:
        code += _alternative(alternative)
    return [*code, Instruction(RETURN, ERRNO | verdict.errno)]


def _alternative(conditions: tuple[Condition, ...]) -> list[Instruction]:
    """Allows if all hold, else goes on behind itself."""
    code = [Instruction(RETURN, ALLOW)]
    for condition in reversed(conditions):
        code = [*_condition(condition, len(code)), *code]
    return code


def _condition(condition: Condition, rest: int) -> list[Instruction]:
    """Goes on to what follows if the condition holds, else skips the ``rest`` instructions of the alternative."""
    load = Instruction(LOAD, _ARGS + 8 * condition.arg)
    if condition.zero:
        upper = Instruction(LOAD, _ARGS + 8 * condition.arg + 4)
        return [load, Instruction(JUMP_EQUAL, 0, jf=2 + rest), upper, Instruction(JUMP_EQUAL, 0, jf=rest)]
    if condition.clear:
        return [load, Instruction(JUMP_ANY_SET, condition.clear, jt=rest)]
    values = condition.any_of or condition.none_of
    code = [load]
    for index, value in enumerate(values):
        behind = len(values) - index - 1
        if condition.none_of:
            code.append(Instruction(JUMP_EQUAL, value, jt=behind + rest))
        else:
            code.append(Instruction(JUMP_EQUAL, value, jt=behind, jf=0 if behind else rest))
    return code
