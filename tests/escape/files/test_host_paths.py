"""Files of the host by their paths: by name, and going up past the root."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "by its name": "read(GIVEN['file'])",
    "by going up": "read('../' * 64 + GIVEN['file'])",
}


async def test_no_path_leads_to_a_file_of_the_host(inside: Inside) -> None:
    """It is not there."""
    await inside.expect(ATTEMPTS, "ENOENT")
