"""Volumes are read-only for everybody inside, whatever their source is and whatever becomes of it meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox.errors import FileFailed
from proofbox.model.outcome import Exited
from proofbox.model.spec import Volume
from proofbox.model.template import Template
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory that everybody may write, so that nothing but the mount keeps anybody from it."""
    made = tmp_path / "source"
    (made / "inner").mkdir(parents=True)
    (made / "one").write_text("one")
    (made / "inner/file").write_text("inner")
    for path in (*tmp_path.parents[:2], tmp_path, made, made / "inner"):
        path.chmod(0o777 if path.is_relative_to(made) else path.stat().st_mode | 0o055)
    for path in (made / "one", made / "inner/file"):
        path.chmod(0o666)
    return made


@pytest.fixture
def nested(source: Path) -> Iterator[Path]:
    """Another file system, writable, mounted below the source."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts on the host")
    inner = source / "inner"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0777", "nested", str(inner)], check=True)
    try:
        (inner / "file").write_text("nested")
        (inner / "file").chmod(0o666)
        yield inner
    finally:
        subprocess.run(["umount", "-l", str(inner)], check=True)


def state(source: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Everything below it: names, modes, owners, times of change, content."""
    found = []
    for path in sorted((source, *source.rglob("*"))):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found.append((str(path), stat.st_mode, stat.st_uid, stat.st_ctime_ns, content))
    return found


async def test_nothing_inside_can_write_to_it_or_remount_it(host: Host, template: Template, source: Path) -> None:
    """Root of the sandbox tries every call that could, and the source is as it was."""
    before = state(source)
    async with host.open_sandbox(template, volumes=[Volume(str(source), "/data")]) as box:
        tried = await box.run(["dirty", "do", "volume"])
        assert tried.outcome == Exited(2), tried
        with pytest.raises(FileFailed) as failed:
            await box.write("/data/one", "evil")
        assert failed.value.errno == errno.EROFS
        assert await box.read("/data/one") == b"one"
    assert state(source) == before


async def test_what_is_mounted_below_the_source_is_read_only_too(
    host: Host, template: Template, source: Path, nested: Path
) -> None:
    """Either it is not seen at all or it cannot be written: never a hole in a read-only volume."""
    before = state(source)
    async with host.open_sandbox(template, volumes=[Volume(str(source), "/data")]) as box:
        with pytest.raises(FileFailed) as failed:
            await box.write("/data/inner/file", "evil")
        assert failed.value.errno == errno.EROFS
        assert (await box.run(["dirty", "do", "volume"])).outcome == Exited(2)
    assert state(source) == before


async def test_a_source_that_is_itself_a_mount_is_read_only(
    host: Host, template: Template, source: Path, nested: Path
) -> None:
    """The flag is the sandbox's mount's; the file system below may be as writable as it likes."""
    async with host.open_sandbox(template, volumes=[Volume(str(nested), "/data")]) as box:
        assert await box.read("/data/file") == b"nested"
        with pytest.raises(FileFailed) as failed:
            await box.write("/data/file", "evil")
        assert failed.value.errno == errno.EROFS
    assert (nested / "file").read_text() == "nested"


async def test_a_source_that_is_replaced_changes_no_running_sandbox(
    host: Host, template: Template, source: Path
) -> None:
    """A sandbox keeps what it was given, read-only; the next one is given what is there then."""
    volumes = [Volume(str(source), "/data")]
    async with host.open_sandbox(template, volumes=volumes) as box:
        source.rename(source.with_name("old"))
        source.mkdir()
        (source / "one").write_text("another")
        assert await box.read("/data/one") == b"one"
        with pytest.raises(FileFailed) as failed:
            await box.write("/data/one", "evil")
        assert failed.value.errno == errno.EROFS
        async with host.open_sandbox(template, volumes=volumes) as other:
            assert await other.read("/data/one") == b"another"
    assert (source / "one").read_text() == "another"
    assert (source.with_name("old") / "one").read_text() == "one"


async def test_a_link_in_it_leads_to_a_place_of_the_sandbox(host: Host, template: Template, source: Path) -> None:
    """An absolute link in shared data means the sandbox's own file of that name, never the host's."""
    (source / "link").symlink_to("/etc/passwd")
    async with host.open_sandbox(template, volumes=[Volume(str(source), "/data")]) as box:
        assert await box.read("/data/link") == await box.read("/etc/passwd")


async def test_many_sandboxes_share_one(host: Host, template: Template, source: Path) -> None:
    """Each of them reads the same file: the host holds its pages once."""
    volumes = [Volume(str(source), "/data"), Volume(str(source / "one"), "/data-file")]
    async with (
        host.open_sandbox(template, volumes=volumes) as one,
        host.open_sandbox(template, volumes=volumes) as other,
    ):
        mine, its = await one.files.stat("/data/one"), await other.files.stat("/data-file")
        assert (mine.inode, mine.size) == (its.inode, its.size) == (os.stat(source / "one").st_ino, 3)
