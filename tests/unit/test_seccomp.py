"""The system call filter: what the compiled program and the OCI profile decide, by running both."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.errors import InvalidInput
from proofbox.host.seccomp.bpf import ALLOW, ERRNO, compile_filter
from proofbox.host.seccomp.oci import oci_profile
from proofbox.host.seccomp.policy import MACHINES, Rule, numbers, parse, policy

WORD = 0xFFFF_FFFF
LONG = 0xFFFF_FFFF_FFFF_FFFF
PROFILE = oci_profile(policy(), "x86_64")


def run(program: bytes, arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """What the kernel's interpreter would return for one call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *(*args, *(0,) * (6 - len(args))))
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator = at = 0
    for _ in range(len(code)):
        operation, yes, no, k = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif operation == 0x05:
            at += k
        elif operation == 0x06:
            return int(k)
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: accumulator & k != 0}[operation]
            at += yes if holds else no
    raise AssertionError("the program does not end")


def native(machine: str, name: str, *args: int) -> int:
    """0 if the compiled policy allows the call, else the errno."""
    result = run(compile_filter(policy(), machine), MACHINES[machine], numbers(machine)[name], args)
    assert result == ALLOW or result & ~0xFFF == ERRNO
    return 0 if result == ALLOW else result & 0xFFF


def oci(profile: dict[str, Any], name: str, *args: int) -> int:
    """The same for an OCI profile, by the OCI specification: an entry with arguments counts where all of them hold."""
    given_args = (*args, *(0,) * (6 - len(args)))
    for entry in profile["syscalls"]:
        holds = all(condition(given_args[each["index"]], each) for each in entry.get("args", ()))
        if name in entry["names"] and holds:
            return 0 if entry["action"] == "SCMP_ACT_ALLOW" else int(entry["errnoRet"])
    return int(profile["defaultErrnoRet"])


def condition(value: int, one: dict[str, Any]) -> bool:
    """One comparison of an entry of the profile, all of 64 bits."""
    if one["op"] == "SCMP_CMP_MASKED_EQ":
        return bool(value & one["value"] == one["valueTwo"])
    return bool({"SCMP_CMP_EQ": value == one["value"], "SCMP_CMP_NE": value != one["value"]}[one["op"]])


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_gets_what_the_policy_says(machine: str) -> None:
    """All numbers of the machine, named by the policy or not, and those around them."""
    program = compile_filter(policy(), machine)
    expected = {number: policy().verdicts.get(name, policy().default) for name, number in numbers(machine).items()}
    for number in range(max(expected) + 50):
        verdict = expected.get(number, policy().default)
        if not isinstance(verdict, Rule):
            assert run(program, MACHINES[machine], number) == (ERRNO | verdict if verdict else ALLOW), number


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_fits_and_every_jump_stays_inside(machine: str) -> None:
    """The kernel refuses a filter that is too long, that does not end with a return, or that jumps out of itself."""
    code = list(struct.iter_unpack("=HBBI", compile_filter(policy(), machine)))
    assert len(code) <= 4096
    assert code[-1][0] == 0x06
    for at, (operation, yes, no, k) in enumerate(code):
        far = k if operation == 0x05 else max(yes, no)
        assert operation == 0x06 or at + 1 + far < len(code)


def test_other_abis_of_the_machine_are_refused() -> None:
    """i386 numbers mean other calls; x32 ones have bit 30 set and would pass by a list of plain numbers."""
    program = compile_filter(policy(), "x86_64")
    assert run(program, 0x40000003, numbers("x86_64")["read"]) == ERRNO | errno.ENOSYS
    for name in ("read", "mount", "clone"):
        assert run(program, MACHINES["x86_64"], numbers("x86_64")[name] | 0x40000000) == ERRNO | errno.ENOSYS
    assert run(program, MACHINES["x86_64"], WORD) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_rules_on_arguments(machine: str) -> None:
    """Threads and processes, but no namespaces; three socket families and one netlink; no typing for others."""
    assert native(machine, "clone", 0x11) == 0
    assert native(machine, "clone", 0x003D0F00) == 0
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert native(machine, "clone", 0x11 | flag) == errno.EPERM
        assert native(machine, "unshare", flag) == errno.EPERM
    assert native(machine, "unshare", 0x80) == errno.EPERM
    assert native(machine, "unshare", 0x400) == 0
    assert native(machine, "clone3") == errno.ENOSYS
    assert [native(machine, "socket", family) for family in (1, 2, 10)] == [0, 0, 0]
    assert native(machine, "socket", 16, 3, 0) == 0
    assert native(machine, "socket", 16, 3, 9) == errno.EAFNOSUPPORT
    for family in (0, 3, 17, 31, 38, 40):
        assert native(machine, "socket", family) == errno.EAFNOSUPPORT
    assert native(machine, "ioctl", 0, 0x5412) == errno.EPERM
    for protocol in (33, 115, 132, 136, 255, 262):
        assert native(machine, "socket", 2, 1, protocol) == errno.EAFNOSUPPORT
    assert [native(machine, "socket", 10, 0x80801, protocol) for protocol in (0, 6)] == [0, 0]
    assert [native(machine, "socket", 2, 5, 0), native(machine, "socket", 2, 6, 0)] == [errno.EAFNOSUPPORT] * 2
    assert native(machine, "ioctl", 0, 0x541C) == errno.EPERM
    assert native(machine, "ioctl", 0, 0x5423) == errno.EPERM
    assert native(machine, "ioctl", 0, 0x5413) == 0
    assert [native(machine, "fcntl", 0, command) for command in (1024, 1026, 1030)] == [errno.EPERM, errno.EPERM, 0]
    assert native(machine, "personality", WORD) == 0
    assert native(machine, "personality", 0x0100000) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_upper_halves_of_arguments_open_no_way_around(machine: str) -> None:
    """The kernel cuts these arguments to 32 bits, so the filters must too (a past hole of others: TIOCSTI + 2^32)."""
    profile = oci_profile(policy(), machine)
    high = 1 << 32
    for name, *args in (("ioctl", 0, 0x5412 | high), ("ioctl", 0, 0x541C | high), ("clone", 0x10000000 | high)):
        assert native(machine, name, *args) == errno.EPERM
        assert oci(profile, name, *args) != 0


@given(
    name=st.sampled_from(sorted(policy().verdicts)),
    args=st.tuples(
        *[
            st.one_of(
                st.integers(0, LONG),
                st.sampled_from([0, 1, 2, 10, 16, 17, 0x5412, 0x541C, 0x5413, 0x20000, 0x40000, WORD, 0x10000000]),
            )
        ]
        * 3
    ),
)
def test_both_forms_allow_the_same(name: str, args: tuple[int, int, int]) -> None:
    """Whatever the call and its arguments: allowed by the compiled program if and only if the OCI profile allows it."""
    allowed = native("x86_64", name, *args) == 0
    assert (oci(PROFILE, name, *args) == 0) == allowed


@pytest.mark.parametrize("machine", MACHINES)
def test_the_limit_on_core_dumps_cannot_be_set(machine: str) -> None:
    """It can be read, whatever pointer is given for the answer; setting it is pretended, whatever pointer brings it."""
    program, profile = compile_filter(policy(), machine), oci_profile(policy(), machine)

    def both(name: str, *args: int) -> set[str]:
        compiled = run(program, MACHINES[machine], numbers(machine)[name], args)
        entry = next(
            each
            for each in profile["syscalls"]
            if name in each["names"] and all(condition(args[one["index"]], one) for one in each.get("args", ()))
        )
        assert entry.get("errnoRet", 0) == 0
        return {"allowed" if compiled == ALLOW else "pretended" if compiled == ERRNO else str(compiled)} | {
            "allowed" if entry["action"] == "SCMP_ACT_ALLOW" else "pretended"
        }

    assert both("prlimit64", 0, 4, 0, 77) == {"allowed"}
    assert both("prlimit64", 0, 7, 77, 0) == both("setrlimit", 7, 77) == {"allowed"}
    for pointer in (77, 1 << 32, 1 << 63):
        assert both("prlimit64", 0, 4, pointer, 0) == both("prlimit64", 0, 4 | 1 << 40, pointer, 0) == {"pretended"}
        assert both("setrlimit", 4, pointer) == {"pretended"}


def test_long_policies_jump_far() -> None:
    """More code than a conditional jump can skip, 255 instructions, still decides right."""
    names = sorted(numbers("x86_64"), key=numbers("x86_64").__getitem__)
    rules = "".join(
        f'[[rule]]\ncall = "{name}"\nerrno = "EPERM"\nallow = [[{{ arg = 0, in = [{index}, 7000] }}]]\n'
        for index, name in enumerate(names)
    )
    program = compile_filter(parse('default = "ENOSYS"\n' + rules), "x86_64")
    for index, name in enumerate(names):
        number = numbers("x86_64")[name]
        assert run(program, MACHINES["x86_64"], number, (index,)) == ALLOW
        assert run(program, MACHINES["x86_64"], number, (index + 1,)) == ERRNO | errno.EPERM


@pytest.mark.parametrize(
    "text",
    [
        'default = "ENOSYS"\n[[allow]]\ncalls = ["read", "read"]',
        'default = "ENOSYS"\n[[allow]]\ncalls = ["raed"]',
        'default = "ENOTANERROR"',
        'default = "ENOSYS"\n[[rule]]\ncall = "ioctl"\nerrno = "EPERM"\nallow = [[{ arg = 6, in = [1] }]]',
        'default = "ENOSYS"\n[[rule]]\ncall = "ioctl"\nerrno = "EPERM"\nallow = [[{ arg = 0, in = [1], clear = 2 }]]',
        'default = "ENOSYS"\n[[rule]]\ncall = "ioctl"\nerrno = "EPERM"\nallow = [[{ arg = 0, in = [0x100000000] }]]',
        'default = "ENOSYS"\n[[rule]]\ncall = "ioctl"\nerrno = "EPERM"\nallow = [[{ arg = 0, zero = false }]]',
        'default = "ENOSYS"\n[[deny]]\ncalls = ["read"]\nerrno = "PRETEND"',
    ],
)
def test_a_policy_with_a_slip_is_refused(text: str) -> None:
    """A misspelt or doubled name would quietly open or close something."""
    with pytest.raises(InvalidInput, match="seccomp policy"):
        parse(text)
