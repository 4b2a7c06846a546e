"""Programs of a few bytes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.escape.attempts import CODE
from tests.escape.conftest import Inside

from proofbox.host.seccomp.policy import machine


async def each_ends_its_program(inside: Inside, instructions: Mapping[str, str]) -> None:
    """By a signal, and the machine goes on. ``instructions`` are bytes in hexadecimal, of an x86-64 processor."""
    if machine() != "x86_64":
        pytest.skip("the instructions are another machine's")
    attempts = {name: f"{CODE}run(bytes.fromhex({code!r} 'c3'))" for name, code in instructions.items()}
    await inside.expect(attempts, "signal 4", "signal 11")
    assert (await inside.box.run("echo on")).stdout == "on\n"
