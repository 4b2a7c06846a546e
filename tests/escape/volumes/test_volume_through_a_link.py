"""A volume whose place in the sandbox leads through a link of the template's."""

from __future__ import annotations

from pathlib import Path

from tests.escape.conftest import HOSTS_KERNEL, Inside, Witness
from tests.escape.mounts.hostile import LIMITS, make

from proofbox.errors import CreateFailed
from proofbox.model.spec import Volume

pytestmark = HOSTS_KERNEL


async def test_a_link_decides_where_inside_a_volume_is_seen_and_never_outside(
    inside: Inside, witness: Witness, tmp_path: Path, shared: Path
) -> None:
    """It is made below the sandbox's own root."""
    template = make(tmp_path, {"out": f"../../../../../../../..{witness.directory}"}, inside.template)
    (tmp_path / "template" / str(witness.directory)[1:]).mkdir(parents=True)
    try:
        async with inside.open_box(
            template=template, limits=LIMITS, volumes=(Volume(str(shared), "/out/here"),)
        ) as box:
            assert (await box.run(f"cat {witness.directory}/here/file")).stdout == "shared"
    except CreateFailed:
        pass
    assert not (witness.directory / "here").exists()
