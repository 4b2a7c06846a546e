"""File capabilities: a program that gives them to whoever runs it (CVE-2021-3493 made such a file for the host)."""

from __future__ import annotations

import struct

import pytest
from tests.escape.conftest import Inside
from tests.escape.privileges.raising import run_raising

ALL = struct.pack("<5I", 0x0200_0001, 0xFFFF_FFFF, 0, 0xFFFF_FFFF, 0)
"""A security.capability attribute: all of them, permitted and effective."""


async def test_a_program_with_capabilities_raises_nobody(inside: Inside) -> None:
    """Root inside can make such a program; a user gets none by it, and root no more than before. The kernel may refuse
    to run it at all.
    """
    make = "import os; os.setxattr({!r}, 'security.capability', {!r})"
    me, made, tried = await run_raising(
        inside, lambda program: inside.box.run(["python3", "-c", make.format(program, ALL)])
    )
    if inside.own_kernel and not made.ok:
        pytest.skip("the kernel inside keeps no file capabilities")
    assert made.ok
    assert tried.stdout in (me, "")
