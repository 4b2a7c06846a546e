"""A template with links where its runtime mounts something (CVE-2021-30465)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.escape.conftest import WHOEVER, Inside, Witness
from tests.escape.mounts.hostile import LIMITS, make

from proofbox.errors import CreateFailed, OperationFailed, SandboxLost


@WHOEVER
@pytest.mark.parametrize("way", ["{}", "../../../../../../../../../..{}"], ids=["absolute", "upwards"])
async def test_links_where_a_runtime_mounts_lead_nowhere(
    inside: Inside, witness: Witness, tmp_path: Path, way: str
) -> None:
    """The sandbox is refused, or what is mounted is mounted inside; nothing is made in the host's directory."""
    refused: list[str] = []
    for name in ("dev", "proc", "sys", "tmp", "etc", "dev/shm", "dev/pts", "dev/null", "proc/sys"):
        place = tmp_path / name.replace("/", "-")
        place.mkdir()
        template = make(place, {name: way.format(witness.directory)}, inside.template)
        try:
            async with inside.open_box(template=template, limits=LIMITS) as box:
                told = await box.run(f"test ! -e {witness.file} && echo inside > /tmp/file; cat {witness.file}")
                assert witness.secret not in told.stdout
        except (CreateFailed, OperationFailed, SandboxLost):
            refused.append(name)
        assert sorted(path.name for path in witness.directory.iterdir()) == ["file", "socket"], name
        assert str(witness.directory) not in Path("/proc/self/mountinfo").read_text(), name
    assert {"dev", "proc"} <= {*refused}
