"""Hard links to files of the host, and renames of them: another name for the same file."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "by a hard link": "os.link(GIVEN['file'], f'/tmp/h{os.getuid()}')",
    "by renaming it": "os.rename(GIVEN['file'], f'/tmp/r{os.getuid()}')",
}


async def test_no_file_of_the_host_gets_another_name(inside: Inside) -> None:
    """It is not there to be named."""
    await inside.expect(ATTEMPTS, "ENOENT")
