"""Secure bits: the rules by which root has capabilities."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "other rules for root": "call('prctl', 28, 0xff, 0, 0, 0)",
    "capabilities kept by who is root no more": "call('prctl', 28, 1 << 4, 0, 0, 0)",
}


async def test_the_rules_for_root_stay(inside: Inside) -> None:
    """Nobody inside may change them."""
    await inside.expect(ATTEMPTS, "EPERM")
