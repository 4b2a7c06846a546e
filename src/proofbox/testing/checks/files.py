"""Files are moved whole or not at all, by any name, and resolved inside the sandbox only."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import shlex

import anyio
import pytest

from proofbox.errors import FileFailed
from proofbox.host.layers import NO_MARKS
from proofbox.model.spec import Volume
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.testing.needs import OpenBox, check

NAMES = {
    "every byte": bytes(n for n in range(1, 256) if n != ord("/"))[:255],
    "a newline": b"a\nb",
    "a leading dash": b"-rf",
    "quotes": b"'\"`$(id)\\",
    "no text": b"\xff\xfe\xe2",
    "the longest": b"n" * 255,
    "spaces": b"  a  b ",
}


@pytest.mark.parametrize("size", [0, 18 << 10, (128 << 10) + 1, 50 << 20])
@check()
async def test_a_file_goes_in_and_out_whole(box: Sandbox, place: str, size: int) -> None:
    """What was acknowledged is there: its size, its hash as seen inside, its bytes when read back."""
    data = (os.urandom(4096) * (size // 4096 + 1))[:size]
    info = await box.write(f"{place}/file", data)
    assert (info.size, info.sha256) == (size, hashlib.sha256(data).hexdigest())
    seen = await box.run(f"sha256sum < {place}/file; stat -c %s {place}/file")
    assert seen.stdout.split() == [hashlib.sha256(data).hexdigest(), "-", str(size)]
    assert await box.read(f"{place}/file") == data


@pytest.mark.parametrize("name", NAMES)
@check()
async def test_a_name_may_hold_any_byte(box: Sandbox, place: str, name: str) -> None:
    """Written, listed, read, renamed and removed under a name that no text and no shell can hold."""
    path = f"{place}/{os.fsdecode(NAMES[name])}"
    await box.write(path, b"content")
    assert [os.fsencode(entry.path) for entry in await box.files.list(place)] == [NAMES[name]]
    assert await box.read(path) == b"content"
    await box.files.rename(path, f"{place}/plain")
    assert (await box.run(["cat", f"{place}/plain"])).stdout == "content"
    await box.files.rename(f"{place}/plain", path)
    await box.files.remove(path)
    assert await box.files.list(place) == []


@check()
async def test_reading_what_cannot_be_read_says_why(box: Sandbox, place: str) -> None:
    """A missing file, a directory and a path through a file are three things; each error names the path."""
    await box.write(f"{place}/file", "x")
    for path, number in (
        (f"{place}/missing", errno.ENOENT),
        (place, errno.EISDIR),
        (f"{place}/file/below", errno.ENOTDIR),
    ):
        with pytest.raises(FileFailed, match=path) as caught:
            await box.read(path)
        assert caught.value.errno == number


@check()
async def test_a_directory_is_never_overwritten(box: Sandbox, place: str) -> None:
    """Writing to a path that is a directory fails and leaves it alone."""
    await box.write(f"{place}/dir/file", "x")
    with pytest.raises(FileFailed) as caught:
        await box.write(f"{place}/dir", "y")
    assert caught.value.errno == errno.EISDIR
    assert await box.read(f"{place}/dir/file") == b"x"


@check()
async def test_parents_are_made_only_when_asked(box: Sandbox, place: str) -> None:
    """By default they are; without them the error is that of a missing directory."""
    await box.write(f"{place}/a/b/c", "x")
    assert (await box.files.stat(f"{place}/a/b")).kind == "directory"
    with pytest.raises(FileFailed) as caught:
        await box.write(f"{place}/d/e", "x", parents=False)
    assert caught.value.errno == errno.ENOENT


@check()
async def test_a_write_replaces_at_once(box: Sandbox, place: str) -> None:
    """Who holds the old file open sees the old content to its end: there is no moment with half of the new one."""
    old, new = b"o" * 300_000, b"n" * 500_000
    await box.write(f"{place}/file", old)
    reader = await box.start(f"exec 4< {place}/file; echo open; read go; sha256sum <&4", stdin=True)
    async for _, data in reader.output():
        if b"open" in data:
            break
    await box.write(f"{place}/file", new)
    await reader.send(b"go\n")
    assert hashlib.sha256(old).hexdigest() in (await reader.wait()).stdout
    assert await box.read(f"{place}/file") == new
    assert [entry.path for entry in await box.files.list(place)] == ["file"], "nothing half-made stays beside it"


@check()
async def test_mode_and_append_do_what_they_say(box: Sandbox, place: str) -> None:
    """A mode is set, kept by later writes, and appending adds to what is there."""
    await box.write(f"{place}/tool", "#!/bin/sh\n", mode=0o750)
    await box.write(f"{place}/tool", "echo one\n", append=True)
    assert (await box.run([f"{place}/tool"])).stdout == "one\n"
    await box.write(f"{place}/tool", "#!/bin/sh\necho two\n")
    assert (await box.files.stat(f"{place}/tool")).mode == 0o750
    assert (await box.run([f"{place}/tool"])).stdout == "two\n"
    await box.files.chmod(f"{place}/tool", 0o600)
    assert (await box.run([f"{place}/tool"])).returncode == 126


@check()
async def test_a_part_of_a_file_can_be_read(box: Sandbox, place: str) -> None:
    """From an offset, at most so many bytes, and nothing past the end."""
    await box.write(f"{place}/file", b"0123456789")
    assert await box.read(f"{place}/file", offset=3, limit=4) == b"3456"
    assert await box.read(f"{place}/file", offset=8) == b"89"
    assert await box.read(f"{place}/file", offset=99) == b""


@check()
async def test_directories_can_be_made_listed_and_removed(box: Sandbox, place: str) -> None:
    """A full directory is removed only recursively; a link to elsewhere is removed, not followed."""
    await box.write(f"{place}/keep/file", "kept")
    await box.files.mkdir(f"{place}/gone/deep", parents=True)
    await box.files.symlink(f"{place}/gone/link", f"{place}/keep")
    assert await box.files.readlink(f"{place}/gone/link") == f"{place}/keep"
    assert sorted(entry.path for entry in await box.files.list(f"{place}/gone")) == ["deep", "link"]
    with pytest.raises(FileFailed) as caught:
        await box.files.remove(f"{place}/gone")
    assert caught.value.errno == errno.ENOTEMPTY
    await box.files.remove(f"{place}/gone", recursive=True)
    assert [entry.path for entry in await box.files.list(place)] == ["keep"]
    assert await box.read(f"{place}/keep/file") == b"kept"


@check(level="container")
async def test_paths_never_lead_to_the_host(open_box: OpenBox, tmp_path: pathlib.Path) -> None:
    """Neither a link, absolute or relative, nor dots reach a file of the host, for reading or for writing."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    up = "../" * 20
    links = {
        "/tmp/absolute": str(secret),
        "/tmp/relative": up + str(secret).lstrip("/"),
        "/tmp/magic": "/proc/1/root" + str(secret),
        "/tmp/open": "/proc/self/cwd/" + up + str(secret),
    }
    async with open_box() as box:
        for link, target in links.items():
            await box.files.symlink(link, target)
        paths = [*links, f"/tmp/{up}{secret}", str(secret)]
        for path in paths:
            with pytest.raises(FileFailed):
                await box.read(path)
        for path in paths:
            try:
                await box.write(path, "planted")
            except FileFailed:
                pass
    assert secret.read_text() == "of the host"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


@check(level="container")
async def test_read_only_places_stay_as_they_are(open_box: OpenBox, tmp_path: pathlib.Path) -> None:
    """A volume can be read and not written, by a command and by a file operation, as the sandbox's root too."""
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("given")
    (tmp_path / "data").chmod(0o666)
    async with open_box(volumes=[Volume(source=str(tmp_path), target="/given")]) as box:
        assert await box.read("/given/data") == b"given"
        for path in ("/given/data", "/given/new"):
            with pytest.raises(FileFailed) as caught:
                await box.write(path, "x")
            assert caught.value.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        tried = await box.run("echo x > /given/data; mount -o remount,rw /given; rm -f /given/data; umount /given")
        assert not tried.ok
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"data": "given"}


@check(level="container")
async def test_the_sandbox_writes_to_its_own_layer_only(open_box: OpenBox) -> None:
    """A file written below ``/usr`` is there for this sandbox and for nobody else."""
    path = "/usr/proofbox-check-file"
    async with open_box() as box, open_box() as other:
        await box.write(path, "mine")
        assert (await box.run(["cat", path])).stdout == "mine"
        with pytest.raises(FileFailed):
            await other.read(path)
    assert not pathlib.Path(path).exists()


@check(level="container")
async def test_what_the_template_holds_can_be_removed_and_replaced(conformance_host: Host, open_box: OpenBox) -> None:
    """A file by a directory, and a directory with all that is in it by an empty one, which hides what was there."""
    if any(NO_MARKS in note for note in conformance_host.probe.notes):
        pytest.skip(NO_MARKS)
    async with open_box() as box:
        directory, file = await _held(box)
        for command in (
            f"rm {file} && mkdir {file} && touch {file}/new && rm -r {file} && mkdir {file} && ls -A {file}",
            f"rm -r {directory} && ! test -e {directory}",
            f"mkdir {directory} && ls -A {directory}",
        ):
            result = await box.run(command)
            assert (result.returncode, result.stdout) == (0, ""), result.stderr


async def _held(box: Sandbox) -> tuple[str, str]:
    """A directory of the template below ``/etc``, and a file in it, as a shell reads them."""
    for entry in await box.files.list("/etc"):
        if entry.kind == "directory":
            directory = f"/etc/{entry.path}"
            for held in await box.files.list(directory):
                if held.kind == "file":
                    return shlex.quote(directory), shlex.quote(f"{directory}/{held.path}")
    pytest.skip("the template holds no file in a directory below /etc")


@check(users=True)
async def test_files_can_be_written_as_another_user(box: Sandbox, place: str) -> None:
    """They belong to that user, and what the user may not do fails."""
    await box.write(f"{place}/his", "x", user="nobody")
    assert (await box.files.stat(f"{place}/his")).uid == 65534
    await box.write(f"{place}/given", "x", owner="nobody")
    assert (await box.files.stat(f"{place}/given")).uid == 65534
    await box.write(f"{place}/root", "x", mode=0o600)
    with pytest.raises(FileFailed) as caught:
        await box.read(f"{place}/root", user="nobody")
    assert caught.value.errno == errno.EACCES
    with pytest.raises(FileFailed) as caught:
        await box.write("/usr/x", "x", user="nobody")
    assert caught.value.errno in (errno.EACCES, errno.EROFS)


@check()
async def test_an_operation_that_blocks_blocks_nothing_else(box: Sandbox, place: str) -> None:
    """Reading a pipe that nobody writes waits alone, and can be given up."""
    await box.run(["mkfifo", f"{place}/pipe"])
    with anyio.move_on_after(0.3) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(box.read, f"{place}/pipe")
            assert (await box.run("echo on")).stdout == "on\n"
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert (await box.run("echo still")).stdout == "still\n"
