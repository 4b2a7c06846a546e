"""Importing a root file system: the same tree has the same digest, and nothing that it holds reaches outside."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput, UnknownTemplate
from proofbox.templates.store import Store

Member = tuple[tarfile.TarInfo, bytes]


def member(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
) -> Member:
    """One hand-made tar entry."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, target, mode, len(content)
    return info, content


def archive(path: Path, *members: Member, mode: str = "w") -> Path:
    """A tar of them in that order."""
    with tarfile.open(path, mode) as made:  # type: ignore[call-overload]
        for info, content in members:
            made.addfile(info, io.BytesIO(content))
    return path


def layer(store: Store, name: str) -> Path:
    """Where the imported tree is."""
    return Path(store.resolve(name).layers[0].source)


def test_directory_and_tar_of_the_same_tree_have_one_digest(store: Store, tree: Path, tmp_path: Path) -> None:
    """It is what the tree holds that names it, not how it came, when, or in which order."""
    packed = tmp_path / "rootfs.tar.gz"
    with tarfile.open(packed, "w:gz") as made:
        made.add(tree, arcname=".")
    first, second = store.import_directory(tree, "one"), store.import_tar(packed, "two")
    assert first.digest == second.digest
    assert store.resolve(first.digest).layers == store.resolve("two").layers
    assert [template.name for template in store.list()] == ["one", "two"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_packing_does_not_matter(store: Store, tmp_path: Path, mode: str) -> None:
    """Each packing that the standard library knows is unpacked."""
    store.import_tar(archive(tmp_path / "a", member("etc/motd", b"hello"), mode=mode), "packed")
    assert (layer(store, "packed") / "etc/motd").read_bytes() == b"hello"


@pytest.mark.parametrize(
    "change",
    ["content", "mode", "name", "link"],
)
def test_every_change_of_the_tree_changes_the_digest(store: Store, tree: Path, change: str) -> None:
    """Content, mode, name and target of a link are all part of the digest."""
    before = store.import_directory(tree, "one").digest
    match change:
        case "content":
            (tree / "bin/tool").write_bytes(b"#!/bin/sh\necho hallo\n")
        case "mode":
            (tree / "bin/tool").chmod(0o4755)
        case "name":
            (tree / "bin/sh").rename(tree / "bin/bash")
        case "link":
            (tree / "bin/sh").unlink()
            (tree / "bin/sh").symlink_to("/bin/also")
    assert store.import_directory(tree, "one").digest != before


def test_what_was_imported_is_as_it_was(store: Store, tree: Path) -> None:
    """Modes, links, hard links and directories without write permission survive."""
    store.import_directory(tree, "one")
    made = layer(store, "one")
    assert stat.S_IMODE((made / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((made / "locked").stat().st_mode) == 0o500
    assert (made / "bin/tool").stat().st_ino == (made / "bin/also").stat().st_ino
    assert os.readlink(made / "bin/sh") == "/bin/tool"


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside", b"x")],
        [member("a/../../outside", b"x")],
        [member("/../outside", b"x")],
        [member("door", kind=tarfile.SYMTYPE, target="{out}"), member("door/outside", b"x")],
        [member("door", kind=tarfile.SYMTYPE, target=".."), member("door/outside", b"x")],
        [
            member("a", kind=tarfile.DIRTYPE),
            member("a/b", kind=tarfile.SYMTYPE, target="../.."),
            member("a/b/c/outside"),
        ],
        [member("peek", kind=tarfile.LNKTYPE, target="{out}/secret")],
        [member("peek", kind=tarfile.LNKTYPE, target="../secret")],
        [
            member("door", kind=tarfile.SYMTYPE, target="{out}"),
            member("peek", kind=tarfile.LNKTYPE, target="door/secret"),
        ],
        [member("x" + "/y" * 3000, b"deep")],
    ],
)
def test_a_member_that_leaves_the_tree_is_refused(store: Store, tmp_path: Path, members: list[Member]) -> None:
    """Dots, absolute targets, links in mid-path and hard links lead nowhere, and nothing is left of it."""
    outside = tmp_path / "out"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    for info, _ in members:
        info.linkname = info.linkname.replace("{out}", str(outside))
    with pytest.raises(InvalidInput):
        store.import_tar(archive(tmp_path / "evil.tar", *members), "evil")
    assert sorted(entry.name for entry in outside.iterdir()) == ["secret"]
    assert not list(tmp_path.rglob("outside"))
    assert not list((store.home / "making").iterdir())
    with pytest.raises(UnknownTemplate):
        store.resolve("evil")


def test_a_write_through_a_planted_link_replaces_the_link(store: Store, tmp_path: Path) -> None:
    """A file of a link's name takes its place; what the link names on the host stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    evil = archive(tmp_path / "t", member("f", kind=tarfile.SYMTYPE, target=str(victim)), member("f", b"evil"))
    store.import_tar(evil, "t")
    assert victim.read_text() == "precious"
    assert (layer(store, "t") / "f").read_text() == "evil"
    assert not (layer(store, "t") / "f").is_symlink()


def test_a_link_out_of_the_tree_is_kept_as_text(store: Store, tmp_path: Path) -> None:
    """Where a link points is resolved inside, later; absolute member names start at the root."""
    store.import_tar(
        archive(tmp_path / "t", member("l", kind=tarfile.SYMTYPE, target="/etc/passwd"), member("/abs", b"1")), "t"
    )
    assert os.readlink(layer(store, "t") / "l") == "/etc/passwd"
    assert (layer(store, "t") / "abs").read_bytes() == b"1"


def test_devices_are_left_out_with_a_note_and_fifos_are_made(store: Store, tmp_path: Path) -> None:
    """A device number in an image is the host's device; a FIFO is harmless."""
    device = member("dev/sda", kind=tarfile.BLKTYPE)
    device[0].devmajor, device[0].devminor = 8, 0
    template = store.import_tar(archive(tmp_path / "t", device, member("pipe", kind=tarfile.FIFOTYPE)), "t")
    assert stat.S_ISFIFO((layer(store, "t") / "pipe").lstat().st_mode)
    assert not (layer(store, "t") / "dev/sda").exists()
    assert "dev/sda" in template.facts["devices and sockets left out"]


def test_names_of_any_bytes_are_kept(store: Store, tmp_path: Path) -> None:
    """A file name need not be UTF-8 and may hold newlines."""
    odd = os.fsdecode(b"\xff\nname")
    store.import_tar(archive(tmp_path / "t", member(odd, b"odd")), "t")
    assert os.listdir(os.fsencode(layer(store, "t"))) == [b"\xff\nname"]


def test_what_holds_nothing_is_no_root(store: Store, tmp_path: Path) -> None:
    """An image of a disk begins with zeros, as the end of an archive does: it is not taken for an empty one."""
    (tmp_path / "disk.img").write_bytes(bytes(20_000))
    with pytest.raises(InvalidInput, match="nothing in it"):
        store.import_tar(tmp_path / "disk.img", "disk")


def test_a_cut_archive_is_refused(store: Store, tmp_path: Path) -> None:
    """Half an archive is no template: it is named, and nothing is left."""
    whole = archive(tmp_path / "t", member("a", b"x" * 100_000)).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:50_000])
    with pytest.raises(InvalidInput, match="not a whole tar"):
        store.import_tar(tmp_path / "cut", "cut")
    assert not list((store.home / "making").iterdir())


@pytest.mark.parametrize("name", ["", "host", "../x", "UPPER", "a b", "sha256:" + "0" * 64, "a" * 200])
def test_a_name_that_cannot_be_told_apart_is_refused(store: Store, tree: Path, name: str) -> None:
    """Names cannot leave the store, shadow the built-in template, or look like a digest."""
    with pytest.raises(InvalidInput):
        store.import_directory(tree, name)
