"""Instructions that only a kernel may execute: ports, registers, interrupts, tables of pages."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, Inside
from tests.escape.machine.instructions import each_ends_its_program

pytestmark = AT_MACHINES

INSTRUCTIONS = {
    "in, from the firmware's configuration": "66ba1105ec",
    "out, to the port of resets": "66ba6400b0feee",
    "out, to the console": "66baf803b041ee",
    "read a register": "b91b0000000f32",
    "write a register": "b91b00000031c031d20f30",
    "halt": "f4",
    "no interrupts": "fa",
    "load the table of interrupts": "0f0118",
    "another root of pages": "0f22d8",
    "count": "31c90f33",
}


# QEMU 10 emulates this one, by doing nothing, for whoever executes it.
OF_A_PROCESSOR = {"forget the caches": "0f08"}


async def test_an_instruction_of_the_kernels_ends_its_program(inside: Inside) -> None:
    """Each is a program of a few bytes, whose end is a signal."""
    emulated = inside.host.probe.facts.get("platform") == "tcg"
    await each_ends_its_program(inside, INSTRUCTIONS if emulated else INSTRUCTIONS | OF_A_PROCESSOR)
