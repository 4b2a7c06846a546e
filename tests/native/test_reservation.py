"""Memory that a sandbox keeps: another value than its limit, which the kernel took."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.native.conftest import OpenBox

from proofbox.model.limits import MIB, Limits
from proofbox.runtimes.native import NativeRuntime

pytestmark = [pytest.mark.anyio, pytest.mark.container]


async def test_the_kernel_holds_a_reservation_beside_the_limit(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """Version 2 calls it ``memory.low`` and needs it in the groups above too; version 1 calls it a soft limit."""
    if "memory" not in runtime._place.directories:
        pytest.skip("no memory control group")
    async with open_box(limits=Limits(memory=256 * MIB, memory_reserve=64 * MIB)) as box:
        group = Path(box.handle.plan.by_controller["memory"])
        assert (await box.run("echo up"))[1] == "up\n"
        low, most = ("memory.low", "memory.max")
        if runtime._place.version == 1:
            low, most = ("memory.soft_limit_in_bytes", "memory.limit_in_bytes")
        assert (group / low).read_text() == f"{64 * MIB}\n"
        assert (group / most).read_text() == f"{256 * MIB}\n"
        if runtime._place.version == 2:
            assert [(each / low).read_text() for each in (group.parent, group.parent.parent)] == ["max\n", "max\n"]
