"""Writing to the template, whose layers all sandboxes share: /usr is the host's own, or one image for all machines."""

from __future__ import annotations

from pathlib import Path

from tests.escape.conftest import Inside, Witness

CHANGED = ("/usr/bin/env", "/usr/bin", "/usr/share", "/usr")


async def test_a_layer_of_the_template_is_not_written(inside: Inside, witness: Witness) -> None:
    """What root changes in /usr, which is the host's, is changed in the sandbox only."""
    async with inside.open_box() as box:
        before = [Path(path).stat().st_mtime_ns for path in CHANGED]
        await box.run(
            "echo x > /usr/bin/env; chmod 777 /usr/bin; rm -rf /usr/share/doc /usr/bin/[; mv /usr/sbin /usr/s"
        )
        assert [Path(path).stat().st_mtime_ns for path in CHANGED] == before
    assert witness.file.exists()
