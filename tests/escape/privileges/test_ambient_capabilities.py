"""Ambient capabilities, which a program gets that was not made for them, and the bounding set, put together again."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "CAP_NET_ADMIN, ambient": "call('prctl', 47, 2, 12, 0, 0)",
    "CAP_SYS_ADMIN, ambient": "call('prctl', 47, 2, 21, 0, 0)",
    "CAP_SYS_ADMIN, in the bounding set": "said = 'there' if call('prctl', 23, 21, 0, 0, 0) else 'none'",
    "CAP_SYS_MODULE, in the bounding set": "said = 'there' if call('prctl', 23, 16, 0, 0, 0) else 'none'",
}


async def test_no_capability_is_kept_for_a_program(inside: Inside) -> None:
    """What is not in the bounding set can be given to nobody."""
    await inside.expect(ATTEMPTS, "EPERM", "none")
