"""Directories go in and out as they are; what an agent puts into one cannot reach the host, nor a link lead a write."""

from __future__ import annotations

import errno
import os
import pathlib
import stat

import pytest

from proofbox.errors import FileFailed, OperationFailed
from proofbox.model.limits import MIB, Limits
from proofbox.model.spec import Volume
from proofbox.sandbox.api import Sandbox
from proofbox.testing.needs import OpenBox, check


def _make(top: pathlib.Path, files: int = 300) -> None:
    """Some small files, a larger one, names of any bytes, links of both kinds."""
    for number in range(files):
        (top / f"{number % 7}").mkdir(parents=True, exist_ok=True)
        (top / f"{number % 7}" / f"{number}").write_bytes(b"%d\n" % number)
    (top / "large").write_bytes(os.urandom(1 << 20) * 3)
    (top / os.fsdecode(b"a\n\xff")).mkdir()
    (top / os.fsdecode(b"a\n\xff") / "-rf *").write_text("odd")
    (top / "0" / "link").symlink_to("../large")
    os.link(top / "large", top / "second")
    (top / "large").chmod(0o755)


def _picture(top: pathlib.Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): os.readlink(path)
        if path.is_symlink()
        else (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(top.rglob("*"))
    }


@check()
async def test_a_directory_goes_in_and_out_as_it_is(box: Sandbox, place: str, tmp_path: pathlib.Path) -> None:
    """Contents, modes, times, links; the numbers that are told are those that a program inside counts."""
    _make(tmp_path / "in")
    sent = await box.files.upload(tmp_path / "in", f"{place}/tree")
    counted = await box.run(f"find {place}/tree -mindepth 1 -print0 | tr -dc '\\0' | wc -c")
    assert int(counted.stdout) == sent.entries
    same = await box.run(f"cmp {place}/tree/large {place}/tree/0/link && stat -c '%a %h' {place}/tree/large")
    assert same.stdout == "755 2\n"
    got = await box.files.download(f"{place}/tree", tmp_path / "out")
    assert got == sent
    assert _picture(tmp_path / "out") == _picture(tmp_path / "in")


@check()
async def test_a_tree_is_kept_with_links_and_odd_kinds_by_choice_only(
    box: Sandbox, place: str, tmp_path: pathlib.Path
) -> None:
    """A link that leads out and a FIFO are refused by name, and then nothing is made; left out, the rest is there."""
    await box.run(f"mkdir {place}/t; cd {place}/t; echo 1 > file; ln -s /etc/passwd out; ln -s file in; mkfifo fifo")
    with pytest.raises(OperationFailed, match=r"'out'|'fifo'"):
        await box.files.download(f"{place}/t", tmp_path / "got")
    assert os.listdir(tmp_path) == []
    got = await box.files.download(f"{place}/t", tmp_path / "got", links="skip", special="skip")
    assert (got.entries, got.left_out, sorted(got.left_out_names)) == (1, 3, ["fifo", "in", "out"])
    assert os.listdir(tmp_path / "got") == ["file"]


@check(level="container")
async def test_a_tree_is_not_written_through_links(open_box: OpenBox, tmp_path: pathlib.Path) -> None:
    """A link in the way is refused, with its path; what it leads to is as it was, on the host and inside."""
    (tmp_path / "tree/door").mkdir(parents=True)
    (tmp_path / "tree/door/planted").write_text("planted")
    secret = tmp_path / "host"
    secret.mkdir()
    async with open_box() as box:
        for target in ("/etc", "/proc/1/root/etc", "../" * 20 + str(secret).lstrip("/"), str(secret)):
            await box.run(["rm", "-rf", "/tmp/t"])
            await box.files.mkdir("/tmp/t")
            await box.files.symlink("/tmp/t/door", target)
            with pytest.raises(FileFailed, match="/tmp/t/door") as caught:
                await box.files.upload(tmp_path / "tree", "/tmp/t")
            assert caught.value.errno == errno.ELOOP
            with pytest.raises(FileFailed) as caught:
                await box.read("/etc/planted")
            assert caught.value.errno == errno.ENOENT
    assert os.listdir(secret) == []


@check(level="container")
async def test_a_tree_is_not_written_into_a_read_only_place(open_box: OpenBox, tmp_path: pathlib.Path) -> None:
    """A volume stays as it is; it can be read as a tree."""
    given, mine = tmp_path / "given", tmp_path / "mine"
    for top in (given, mine):
        top.mkdir(mode=0o755)
        (top / top.name).write_text(top.name)
    tmp_path.chmod(0o755)
    async with open_box(volumes=[Volume(source=str(given), target="/given")]) as box:
        with pytest.raises(FileFailed, match="/given/mine") as caught:
            await box.files.upload(mine, "/given")
        assert caught.value.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        await box.files.download("/given", tmp_path / "got")
    assert os.listdir(given) == ["given"]
    assert (tmp_path / "got/given").read_text() == "given"


@check(enforces=("disk",))
async def test_a_tree_that_meets_the_disk_limit_leaves_whole_files(open_box: OpenBox, tmp_path: pathlib.Path) -> None:
    """The error names the file that found no room; those before it are there and whole, nothing of it is, and there is
    room again.
    """
    (tmp_path / "tree").mkdir()
    for number in range(5):
        (tmp_path / "tree" / f"{number}").write_bytes(b"x" * 3 * MIB)
    async with open_box(limits=Limits(disk=8 * MIB)) as box:
        with pytest.raises(FileFailed, match="/tmp/t/2") as caught:
            await box.files.upload(tmp_path / "tree", "/tmp/t")
        assert caught.value.errno == errno.ENOSPC
        left = {entry.path: entry.size for entry in await box.files.list("/tmp/t")}
        assert left == {"0": 3 * MIB, "1": 3 * MIB}
        await box.write("/tmp/more", b"y" * MIB)


@check(users=True)
async def test_a_tree_belongs_to_its_user(box: Sandbox, place: str, tmp_path: pathlib.Path) -> None:
    """To the one that writes or the one that is named; what that one may not do fails with the path."""
    _make(tmp_path / "in", 10)
    await box.files.upload(tmp_path / "in", f"{place}/his", user="nobody")
    await box.files.upload(tmp_path / "in", f"{place}/given", owner="nobody")
    for name in ("his", "given"):
        found = await box.run(f"find {place}/{name} -mindepth 1 ! -user nobody; stat -c %U {place}/{name}")
        assert found.stdout == "nobody\n"
    await box.files.upload(tmp_path / "in", f"{place}/root")
    with pytest.raises(FileFailed, match=f"{place}/root/") as caught:
        await box.files.upload(tmp_path / "in", f"{place}/root", user="nobody")
    assert caught.value.errno == errno.EACCES
    await box.files.chmod(f"{place}/root/0/0", 0o600)
    with pytest.raises(FileFailed, match=f"{place}/root/0/0") as caught:
        await box.files.download(f"{place}/root", tmp_path / "out", user="nobody")
    assert caught.value.errno == errno.EACCES
