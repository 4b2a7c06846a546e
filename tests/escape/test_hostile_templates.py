"""A template that was made to lead its own runtime astray: links where things are mounted (CVE-2021-30465)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.escape.conftest import Inside, Witness

from proofbox.errors import CreateFailed, OperationFailed, SandboxLost
from proofbox.model.limits import Limits
from proofbox.model.spec import Volume
from proofbox.model.template import Layer, Template

DIRECTORIES = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var")
LIMITS = Limits(disk=8 << 20, inodes=1000)


def make(root: Path, links: dict[str, str], usual: Template | str) -> Template:
    """A root with the /usr of the host or of the ``usual`` template, and links in place of some of its directories.

    Without a digest that one's image is made for each machine, and kept for no other.
    """
    usr, digest = ("/usr", "sha256:0") if isinstance(usual, str) else (f"{usual.layers[0].source}/usr", "")
    for above in (root, *root.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    top = root / "template"
    for name in (*DIRECTORIES, "usr"):
        if name not in links:
            (top / name).mkdir(parents=True)
    if "etc" not in links:
        (top / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for name in ("bin", "lib", "lib64"):
        (top / name).symlink_to(f"usr/{name}")
    for name, target in links.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).symlink_to(target)
    return Template(digest=digest, name="t", layers=(Layer("/", str(top)), Layer("/usr", usr)), env={})


@pytest.mark.parametrize("way", ["{}", "../../../../../../../../../..{}"], ids=["absolute", "upwards"])
async def test_links_where_a_runtime_mounts_lead_nowhere(
    inside: Inside, witness: Witness, tmp_path: Path, way: str
) -> None:
    """The sandbox is refused, or what is mounted is mounted inside; nothing is made in the host's directory."""
    if inside.user is not None:
        pytest.skip("what is mounted does not depend on the user")
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


async def test_a_link_decides_where_inside_a_volume_is_seen_and_never_outside(
    inside: Inside, witness: Witness, tmp_path: Path
) -> None:
    """The volume's place leads through a link of the template's: it is made below the sandbox's own root."""
    template = make(tmp_path, {"out": f"../../../../../../../..{witness.directory}"}, inside.template)
    (tmp_path / "template" / str(witness.directory)[1:]).mkdir(parents=True)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("data")
    try:
        async with inside.open_box(
            template=template, limits=LIMITS, volumes=(Volume(str(shared), "/out/here"),)
        ) as box:
            assert (await box.run(f"cat {witness.directory}/here/data")).stdout == "data"
    except CreateFailed:
        pass
    assert not (witness.directory / "here").exists()
