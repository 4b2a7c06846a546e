"""no_new_privs, by which no program raises who runs it: taking it back."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "no_new_privs, taken back": "call('prctl', 38, 0, 0, 0, 0)",
    "what it is": "said = call('prctl', 39, 0, 0, 0, 0)",
}


async def test_it_is_set_and_stays(inside: Inside) -> None:
    """For root as for others."""
    await inside.expect(ATTEMPTS, "EINVAL", "1")
