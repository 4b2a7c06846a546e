"""Machines that go on from one saved state: whoever has one could know what another one is going to choose."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, WHOEVER, Inside
from tests.escape.machine.choices import told

pytestmark = [AT_MACHINES, WHOEVER]


async def test_twins_choose_differently(inside: Inside) -> None:
    """Nothing that has to be a secret, or one's own, is the same in two of them."""
    async with inside.open_box() as one, inside.open_box() as other:
        left, right = await told(one), await told(other)
    assert len(left) == 12
    assert {name: value for name, value in left.items() if right[name] == value} == {}
