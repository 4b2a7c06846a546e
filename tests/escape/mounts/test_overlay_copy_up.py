"""Files that an overlay copies up, with the rights that they had below (CVE-2023-0386)."""

from __future__ import annotations

from tests.escape.conftest import Inside


async def test_what_comes_up_from_below_keeps_its_owner(inside: Inside) -> None:
    """A file that is copied up because root changes it has the owner and the mode that it had."""
    async with inside.open_box() as box:
        before = await box.run("stat -c '%u %g %a' /usr/bin/env /usr/bin/passwd")
        await box.run("touch /usr/bin/env /usr/bin/passwd")
        after = await box.run("stat -c '%u %g %a' /usr/bin/env /usr/bin/passwd")
        assert after.stdout == before.stdout
