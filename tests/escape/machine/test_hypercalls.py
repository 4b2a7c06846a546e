"""Instructions that call the hypervisor, or begin to be one (vmcall, vmmcall, vmxon, vmrun)."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, Inside
from tests.escape.machine.instructions import each_ends_its_program

pytestmark = AT_MACHINES

INSTRUCTIONS = {
    "call what is below, Intel's way": "0f01c1",
    "call what is below, AMD's way": "0f01d9",
    "become what is below": "0f01c4",
    "hand over to what is below": "0f01d8",
}


async def test_no_program_calls_what_is_below(inside: Inside) -> None:
    """Each is a program of a few bytes, whose end is a signal."""
    await each_ends_its_program(inside, INSTRUCTIONS)
