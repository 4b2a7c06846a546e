"""Directories into a sandbox and out of it, through the real guest: here whole or not at all, no link followed."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.sandbox.conftest import PLAIN

from proofbox.errors import FileFailed, InvalidInput, OperationFailed, ProtocolViolation
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.wire import guest, tar
from proofbox.wire.tar import Entry


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small directory of this machine."""
    top = tmp_path / "tree"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "sub" / "script").write_text("#!/bin/sh\necho ran\n")
    (top / "sub" / "script").chmod(0o755)
    (top / "sub" / "deep" / os.fsdecode(b"\xff\nname")).write_bytes(b"odd")
    (top / "large").write_bytes(bytes(range(256)) * 8000)
    (top / "sub" / "up").symlink_to("../large")
    os.link(top / "large", top / "twin")
    os.utime(top / "large", ns=(0, 1_000_000_000_123_456_789))
    return top


def picture(top: Path) -> dict[str, object]:
    """Contents, modes and times of all below, links as they say."""
    return {
        str(path.relative_to(top)): os.readlink(path)
        if path.is_symlink()
        else (
            stat.S_IMODE(path.stat().st_mode),
            path.stat().st_mtime_ns if path.is_file() else 0,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(top.rglob("*"))
    }


async def test_a_tree_goes_in_and_comes_out_as_it_was(box: Sandbox, tree: Path, tmp_path: Path) -> None:
    """Contents, modes, times, links, names of any bytes; both sides tell the same numbers."""
    sent = await box.files.upload(tree, "made/here")
    assert (sent.entries, sent.size, sent.left_out) == (7, 2_048_003 + 19, 0)
    assert (await box.run(["made/here/sub/script"])).stdout == "ran\n"
    assert await box.read("made/here/sub/up", limit=3) == b"\0\1\2"
    got = await box.files.download("made/here", tmp_path / "copy")
    assert got == sent
    assert picture(tmp_path / "copy") == picture(tree)
    assert (tmp_path / "copy/large").stat().st_ino == (tmp_path / "copy/twin").stat().st_ino
    assert sorted(os.listdir(tmp_path)) == ["copy", "tree"]


async def test_what_is_there_stays_and_files_are_replaced(box: Sandbox, tree: Path) -> None:
    """An upload into a directory that exists adds to it."""
    await box.write("d/large", "old")
    await box.write("d/mine", "kept")
    await box.files.upload(tree, "d")
    assert (await box.files.stat("d/large")).size == 2_048_000
    assert await box.read("d/mine") == b"kept"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "sub/../..", "a/../b"])
async def test_an_upload_follows_no_link(box: Sandbox, tree: Path, tmp_path: Path, target: str) -> None:
    """One that may lead out is refused by name, kept as text or left out, as asked; what it leads to never goes in."""
    (tree / "a link").symlink_to(target)
    with pytest.raises(InvalidInput, match=r"'a link' to .*links='keep'"):
        await box.files.upload(tree, "refused")
    skipped = await box.files.upload(tree, "skipped", links="skip")
    assert (skipped.left_out, set(skipped.left_out_names)) == (2, {"a link", "sub/up"})
    await box.files.upload(tree, "kept", links="keep")
    assert await box.files.readlink("kept/a link") == target
    assert {entry.kind for entry in await box.files.list("skipped", recursive=True)} == {"file", "directory"}


async def test_special_files_are_refused_or_left_out(box: Sandbox, tree: Path, tmp_path: Path) -> None:
    """In both directions; a FIFO is never opened."""
    os.mkfifo(tree / "fifo")
    with pytest.raises(InvalidInput, match="'fifo' is a device"):
        await box.files.upload(tree, "in")
    assert (await box.files.upload(tree, "in", special="skip")).left_out_names == ("fifo",)
    await box.run(["mkfifo", "in/fifo"])
    with pytest.raises(OperationFailed, match="'fifo' is a device"):
        await box.files.download("in", tmp_path / "out")
    assert (await box.files.download("in", tmp_path / "out", special="skip")).left_out_names == ("fifo",)
    assert not (tmp_path / "out/fifo").exists()


@pytest.mark.parametrize(
    ("command", "name"),
    [("ln -s /etc x", "x"), ("ln -s ../.. x", "x"), ("mkdir -p d; ln -s . d/l; ln -s d/l/.. x", "x")],
)
async def test_a_link_of_the_agents_is_never_resolved_here(
    box: Sandbox, tmp_path: Path, command: str, name: str
) -> None:
    """One that may lead out is refused, and nothing is left; kept, it is a link and no more."""
    await box.run(f"mkdir work; cd work; echo 1 > file; {command}")
    with pytest.raises(OperationFailed, match=f"the link '{name}'"):
        await box.files.download("work", tmp_path / "out")
    assert os.listdir(tmp_path) == []
    await box.files.download("work", tmp_path / "out", links="keep")
    assert (tmp_path / "out" / name).is_symlink()
    assert (await box.files.download("work", tmp_path / "plain", links="skip")).left_out >= 1
    assert not any(path.is_symlink() for path in (tmp_path / "plain").rglob("*"))


async def test_what_comes_out_has_no_rights_of_the_agents_making(box: Sandbox, tmp_path: Path) -> None:
    """No set-user-id, nothing beyond the umask, and always what its owner needs to remove it."""
    await box.run("mkdir -p work/closed; echo x > work/tool; chmod 6777 work/tool; touch work/f; chmod 400 work/f")
    await box.run("chmod 1777 work/closed; umask 0; touch work/open; chmod 666 work/open")
    old = os.umask(0o027)
    try:
        await box.files.download("work", tmp_path / "out")
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {"closed": 0o750, "tool": 0o750, "f": 0o600, "open": 0o640}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    assert {path.stat().st_uid for path in (tmp_path / "out").iterdir()} == {os.geteuid()}


async def test_a_download_is_bounded(box: Sandbox, tmp_path: Path) -> None:
    """By bytes, before they are written, and by entries; a sparse file of a terabyte fills no disk here."""
    await box.run("mkdir many big; truncate -s 1T big/sparse; cd many; touch 1 2 3 4 5")
    with pytest.raises(FileFailed) as caught:
        await box.files.download("big", tmp_path / "out")
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(FileFailed) as caught:
        await box.files.download("many", tmp_path / "out", entries=4)
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []
    assert (await box.files.download("many", tmp_path / "out", entries=5, limit=0)).entries == 5


async def test_what_is_wrong_with_a_directory_is_told(box: Sandbox, tree: Path, tmp_path: Path) -> None:
    """Inside by errno and path, here as what the caller got wrong; nothing is made."""
    await box.write("file", "x")
    for operation, number in (
        (box.files.download("none", tmp_path / "out"), errno.ENOENT),
        (box.files.download("file", tmp_path / "out"), errno.ENOTDIR),
        (box.files.upload(tree, "file"), errno.ENOTDIR),
        (box.files.upload(tree, "file/below"), errno.ENOTDIR),
        (box.files.upload(tree, "no/parent", parents=False), errno.ENOENT),
    ):
        with pytest.raises(FileFailed) as caught:
            await operation
        assert caught.value.errno == number
    for wrong in (
        box.files.upload(tree / "large", "x"),
        box.files.upload(tree / "none", "x"),
        box.files.upload(tree, "x", links="follow"),  # type: ignore[arg-type]
        box.files.download(".", tree),
        box.files.download(".", tree / "large"),
        box.files.download("a\0b", tmp_path / "out"),
    ):
        with pytest.raises(InvalidInput):
            await wrong
    with pytest.raises(FileNotFoundError):
        await box.files.download(".", tmp_path / "no/parent")
    assert os.listdir(tmp_path) == ["tree"]


async def test_an_upload_tells_which_path_failed(box: Sandbox, tree: Path) -> None:
    """The path inside, below the directory that was named."""
    await box.run("mkdir -p d/large")
    with pytest.raises(FileFailed, match="d/large") as caught:
        await box.files.upload(tree, "d")
    assert caught.value.errno == errno.EISDIR


async def test_a_file_that_cannot_be_read_here_is_named(
    box: Sandbox, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its whole path, as an error of this machine's."""
    real = os.open

    def closed(name: object, *args: object, **more: object) -> int:
        if name == b"script":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("proofbox.sandbox.localtree.os.open", closed)
    with pytest.raises(PermissionError) as caught:
        await box.files.upload(tree, "d")
    assert caught.value.filename == str(tree / "sub/script")


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_cancelled_transfer_leaves_nothing_half_made_here(box: Sandbox, tmp_path: Path, direction: str) -> None:
    """Nor an operation inside: the sandbox goes on, and what was written there before is whole."""
    await box.run("mkdir in d; truncate -s 100G d/sparse")
    began = anyio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield tar.header(Entry(type=tar.FILE, path=b"sparse", size=100 << 30))
        while True:
            yield bytes(1 << 16)
            began.set()

    async def move() -> None:
        if direction == "in":
            await box.files.write_tar("in", source())
        else:
            await box.files.download("d", tmp_path / "out", limit=1 << 40)

    async def look() -> None:
        while not any(path.stat().st_size for path in tmp_path.rglob("sparse")):  # noqa: ASYNC110 - a file sets no event
            await anyio.sleep(0.01)
        began.set()

    async with anyio.create_task_group() as group:
        group.start_soon(move)
        group.start_soon(look)
        with anyio.fail_after(20):
            await began.wait()
        group.cancel_scope.cancel()
    assert os.listdir(tmp_path) == []
    assert await box.files.list("in") == []
    assert (await box.run(["echo", "on"])).stdout == "on\n"


async def test_an_archive_flows_out_and_in(box: Sandbox, tree: Path) -> None:
    """As bytes, without a directory on this side; others can read it."""
    await box.files.upload(tree, "d")
    raw = b"".join([piece async for piece in box.files.read_tar("d")])
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert len(archive.getmembers()) == 7
        file = archive.extractfile("sub/script")
        assert file is not None
        assert file.read() == b"#!/bin/sh\necho ran\n"

    async def source() -> AsyncIterator[bytes]:
        for at in range(0, len(raw), 50_000):
            yield raw[at : at + 50_000]

    assert (await box.files.write_tar("again", source())).entries == 7
    assert (await box.run("diff -r d again && echo same")).stdout == "same\n"


async def test_a_reader_may_stop_early(box: Sandbox) -> None:
    """The operation ends with it, and the next one works."""
    await box.run("mkdir d; truncate -s 10G d/sparse")
    pieces = box.files.read_tar("d")
    assert await anext(pieces)
    await pieces.aclose()
    assert (await box.run(["echo", "on"])).stdout == "on\n"
    with pytest.raises(FileFailed, match="none"):
        await anext(box.files.read_tar("none"))


async def test_a_hostile_archive_is_refused_inside(box: Sandbox) -> None:
    """By errno, with the path of the entry."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../up"))

    async def source(raw: bytes) -> AsyncIterator[bytes]:
        yield raw

    with pytest.raises(FileFailed, match=r"d/\.\./up") as caught:
        await box.files.write_tar("d", source(made.getvalue()))
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(FileFailed) as caught:
        await box.files.write_tar("d", source(b"no archive" * 100))
    assert caught.value.errno == errno.EBADMSG


def archive(*entries: Entry) -> bytes:
    """Of files without content, and what else there is."""
    return b"".join(map(tar.header, entries)) + tar.CLOSING


ESCAPE = [Entry(type=tar.SYMLINK, path=b"door", target=b"sub"), Entry(type=tar.FILE, path=b"door/owned")]
DEEPER = [
    Entry(type=tar.SYMLINK, path=b"a/b/l", target=b"../.."),
    Entry(type=tar.HARD_LINK, path=b"h", target=b"a/b/l"),
]
OUTSIDE = tar._block(tar.FILE, b"../owned", b"", 0o644, 0, 0, 0, 0) + tar.CLOSING
LIES = {
    "outside": (OUTSIDE, guest.TreeCounts(1, 0, 0), ProtocolViolation),
    "cut": (archive(Entry(type=tar.FILE, path=b"f"))[:-512], guest.TreeCounts(1, 0, 0), ProtocolViolation),
    "nothing": (b"", guest.TreeCounts(0, 0, 0), ProtocolViolation),
    "rubbish": (b"\1" * 2000, guest.TreeCounts(0, 0, 0), ProtocolViolation),
    "other counts": (archive(Entry(type=tar.FILE, path=b"f")), guest.TreeCounts(2, 0, 0), ProtocolViolation),
    "through a link": (archive(*ESCAPE), guest.TreeCounts(2, 0, 0), OperationFailed),
    "a link one level up": (archive(*DEEPER), guest.TreeCounts(2, 0, 0), OperationFailed),
    "a hard link to nothing": (
        archive(Entry(type=tar.HARD_LINK, path=b"h", target=b"none")),
        guest.TreeCounts(1, 0, 0),
        OperationFailed,
    ),
    "a device": (archive(Entry(type=tar.BLOCK_DEVICE, path=b"sda")), guest.TreeCounts(1, 0, 0), OperationFailed),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_guest_that_lies_makes_nothing_here(
    fake: FakeRuntime, fake_host: Host, tmp_path: Path, lie: str
) -> None:
    """Whatever archive it sends: the error says whose doing it is, and no file of this machine is made or left."""
    raw, counts, wanted = LIES[lie]
    fake.scripts = lambda spec: Faults(tree=(raw, guest.encode_tree_counts(counts)))
    async with fake_host.open_sandbox(PLAIN) as box:
        await box.files.mkdir("/d")
        with pytest.raises(wanted):
            await box.files.download("/d", tmp_path / "out")
    assert os.listdir(tmp_path) == []
