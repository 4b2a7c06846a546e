"""Files through the real guest, without isolation."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import AsyncIterator

import anyio
import pytest

from proofbox.errors import FileFailed, InvalidInput
from proofbox.sandbox.api import Sandbox


@pytest.mark.parametrize("size", [0, 18_000, 131_072, 3_000_000])
async def test_what_is_written_is_read_back(box: Sandbox, size: int) -> None:
    """Of any size; the answer tells what is there."""
    data = bytes(range(256)) * (size // 256 + 1)
    info = await box.write("deep/er/file", data[:size])
    assert (info.kind, info.size, info.sha256) == ("file", size, hashlib.sha256(data[:size]).hexdigest())
    assert not (await box.files.stat("deep/er/file")).sha256
    assert await box.read("deep/er/file") == data[:size]
    assert (await box.run(["wc", "-c", "deep/er/file"])).stdout.split()[0] == str(size)


async def test_parts_are_read_and_appended(box: Sandbox) -> None:
    """By offset and limit."""
    await box.write("f", "0123456789")
    assert await box.read("f", offset=3, limit=4) == b"3456"
    assert await box.read("f", offset=8) == b"89"
    assert await box.read("f", offset=99) == b""
    assert (await box.write("f", b"ab", append=True)).size == 12


async def test_modes_are_kept_or_set(box: Sandbox) -> None:
    """A new content does not make a script unexecutable."""
    assert (await box.write("script", "#!/bin/sh\necho ran\n", mode=0o750)).mode == 0o750
    assert (await box.write("script", "#!/bin/sh\necho again\n")).mode == 0o750
    assert (await box.run(["./script"])).stdout == "again\n"
    assert (await box.files.chmod("script", 0o600)).mode == 0o600


@pytest.mark.parametrize("name", [b"\xff\xfe.bin", "line\nbreak", "-rf", "sp ace", "\N{SNOWMAN}", "\udcff"])
async def test_names_are_any_bytes(box: Sandbox, name: str | bytes) -> None:
    """But NUL and "/"."""
    await box.files.mkdir("names")
    path = b"names/" + (name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape"))
    await box.write(path, b"x")
    (entry,) = await box.files.list("names")
    assert entry.path.encode("utf-8", "surrogateescape") == path[6:]
    assert await box.read("names/" + entry.path) == b"x"


async def test_what_is_wrong_with_a_path_is_told_by_its_errno(box: Sandbox) -> None:
    """As a file error, which is an OSError too."""
    await box.files.mkdir("d/e", parents=True)
    await box.write("f", b"")
    for operation, expected in (
        (box.read("d"), errno.EISDIR),
        (box.read("absent"), errno.ENOENT),
        (box.read("f/x"), errno.ENOTDIR),
        (box.write("d", b"x"), errno.EISDIR),
        (box.write("no/parent", b"x", parents=False), errno.ENOENT),
        (box.files.mkdir("d"), errno.EEXIST),
        (box.files.remove("d"), errno.ENOTEMPTY),
        (box.files.readlink("f"), errno.EINVAL),
        (box.write("/proc/version", b"x"), None),
    ):
        with pytest.raises(FileFailed) as caught:
            await operation
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == expected or expected is None
    for bad in ("", "a\0b", b"x" * 5000):
        with pytest.raises(InvalidInput):
            await box.read(bad)


async def test_links_trees_and_renames(box: Sandbox) -> None:
    """What a shell would do, without one."""
    await box.write("tree/a", b"1")
    await box.files.symlink("tree/link", "a")
    assert await box.files.readlink("tree/link") == "a"
    assert (await box.files.stat("tree/link")).kind == "file"
    assert (await box.files.stat("tree/link", follow=False)).kind == "link"
    await box.files.symlink("tree/broken", "nowhere")
    assert (await box.files.stat("tree/broken", follow=False)).kind == "link"
    with pytest.raises(FileFailed, match="No such file"):
        await box.files.stat("tree/broken")
    await box.files.rename("tree/a", "tree/b")
    names = {entry.path for entry in await box.files.list(".", recursive=True)}
    assert {"tree", "tree/b", "tree/link", "tree/broken"} <= names
    await box.files.remove("tree", recursive=True)
    assert await box.files.list(".") == []


async def test_streams_go_in_and_out(box: Sandbox) -> None:
    """Without a whole file in memory on either side."""

    async def source() -> AsyncIterator[bytes]:
        for number in range(100):
            yield bytes([number]) * 20_000

    info = await box.files.write_from("big", source(), size=2_000_000)
    brought = b"".join([bytes([number]) * 20_000 for number in range(100)])
    assert (info.size, info.sha256) == (len(brought), hashlib.sha256(brought).hexdigest())
    got: list[bytes] = []

    async def sink(data: bytes) -> None:
        got.append(data)

    assert await box.files.read_into("big", sink) == 2_000_000
    assert b"".join(got) == brought


async def test_a_source_that_breaks_leaves_the_old_file(box: Sandbox) -> None:
    """All or nothing, also for the wrong number of bytes."""
    await box.write("f", b"old")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"new"
        raise RuntimeError("no more")

    async def short() -> AsyncIterator[bytes]:
        yield b"new"

    with pytest.raises(RuntimeError, match="no more"):
        await box.files.write_from("f", breaks())
    with pytest.raises(FileFailed):
        await box.files.write_from("f", short(), size=10)
    assert await box.read("f") == b"old"


async def test_a_device_without_end_is_not_read_for_ever(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit a read is bounded, and says so."""
    monkeypatch.setattr("proofbox.sandbox.files.READ_MOST", 1_000_000)
    with pytest.raises(FileFailed) as caught:
        await box.read("/dev/zero")
    assert caught.value.errno == errno.EFBIG
    assert await box.read("/dev/zero", limit=5) == bytes(5)


async def test_a_fifo_that_nobody_writes_times_out(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It blocks nothing else meanwhile."""
    monkeypatch.setattr("proofbox.sandbox.fileops.FILE_SECONDS", 0.4)
    await box.run(["mkfifo", "pipe"])
    async with anyio.create_task_group() as group:

        async def stuck() -> None:
            with pytest.raises(FileFailed) as caught:
                await box.read("pipe")
            assert caught.value.errno == errno.ETIMEDOUT

        group.start_soon(stuck)
        await anyio.sleep(0.05)
        assert (await box.run(["echo", "free"])).stdout == "free\n"
