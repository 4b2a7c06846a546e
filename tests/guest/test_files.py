"""File operations: resolved inside, as the user, whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from proofbox.wire import frames, guest

from .driver import Guest

AS_NOBODY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


def _path(path: Path | str) -> bytes:
    return os.fsencode(path)


@pytest.mark.parametrize("size", [0, 18_000, 50_000_000])
def test_write_and_read_any_size(guest_process: Guest, tmp_path: Path, size: int) -> None:
    """What was written is read back; the record tells its size and mode; nothing else is left in the directory."""
    data = os.urandom(min(size, 1 << 20)) * max(1, size >> 20)
    target = tmp_path / "file"
    end, _ = guest_process.file(guest.WRITE, _path(target), data, size=len(data))
    assert (end.errno, end.how) == (0, guest.EXITED)
    record = guest.decode_stat(end.result)
    assert (record.size, stat.S_IMODE(record.mode)) == (len(data), 0o644)
    end, read = guest_process.file(guest.READ, _path(target))
    assert end.errno == 0
    assert read == data
    assert os.listdir(tmp_path) == ["file"]


def test_read_has_offset_and_limit(guest_process: Guest, tmp_path: Path) -> None:
    """A part of a file."""
    (tmp_path / "f").write_bytes(b"0123456789")
    end, data = guest_process.file(guest.READ, _path(tmp_path / "f"), offset=3, limit=4)
    assert (end.errno, data) == (0, b"3456")
    assert guest.decode_stat(end.result).size == 10


def test_names_of_any_bytes(guest_process: Guest, tmp_path: Path) -> None:
    """A name need not be UTF-8, and may hold newlines and spaces."""
    name = b"\xff\xfe \n'\"$x"
    path = _path(tmp_path) + b"/" + name
    assert guest_process.file(guest.WRITE, path, b"data")[0].errno == 0
    assert guest_process.file(guest.READ, path)[1] == b"data"
    end, listed = guest_process.file(guest.LIST_DIR, _path(tmp_path))
    assert [entry.name for entry in guest.decode_entries(listed)] == [name]
    assert struct.unpack("<Q", end.result) == (1,)


def test_errors_are_the_kernels(guest_process: Guest, tmp_path: Path) -> None:
    """Directory, missing parent, too long a name, a file as a directory: each its own errno, and nothing is left."""
    (tmp_path / "file").write_text("x")
    cases = [
        (guest.READ, tmp_path, None, errno.EISDIR),
        (guest.WRITE, tmp_path, b"", errno.EISDIR),
        (guest.WRITE, tmp_path / "no" / "file", b"", errno.ENOENT),
        (guest.WRITE, tmp_path / ("x" * 300), b"", errno.ENAMETOOLONG),
        (guest.WRITE, tmp_path / "file" / "below", b"", errno.ENOTDIR),
        (guest.READ, tmp_path / "none", None, errno.ENOENT),
        (guest.STAT, tmp_path / "none", None, errno.ENOENT),
        (guest.LIST_DIR, tmp_path / "file", None, errno.ENOTDIR),
        (guest.MKDIR, tmp_path / "file", None, errno.EEXIST),
        (guest.READLINK, tmp_path / "file", None, errno.EINVAL),
    ]
    for operation, path, data, wanted in cases:
        end, _ = guest_process.file(operation, _path(path), data)
        assert (operation, end.errno) == (operation, wanted)
    assert os.listdir(tmp_path) == ["file"]


def test_write_makes_parents_when_asked(guest_process: Guest, tmp_path: Path) -> None:
    """With the flag missing parents are made; an existing one is fine."""
    for name in ("a/b/c/file", "a/b/c/other"):
        end, _ = guest_process.file(guest.WRITE, _path(tmp_path / name), b"x", flags=guest.PARENTS)
        assert end.errno == 0
    assert (tmp_path / "a/b/c/other").read_bytes() == b"x"


def test_write_of_another_size_than_promised_changes_nothing(guest_process: Guest, tmp_path: Path) -> None:
    """EIO, the old content stays, and no temporary file is left."""
    (tmp_path / "f").write_text("old")
    end, _ = guest_process.file(guest.WRITE, _path(tmp_path / "f"), b"short", size=100)
    assert end.errno == errno.EIO
    assert (tmp_path / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_killed_write_leaves_the_old_file_and_no_other(guest_process: Guest, tmp_path: Path) -> None:
    """KILL in the middle of a write: the target is untouched and the temporary file is gone."""
    (tmp_path / "f").write_text("old")
    run = guest.Run(kind=guest.FILE, file_op=guest.WRITE, path=_path(tmp_path / "f"), stdin=True)
    stream = guest_process.start(run)
    guest_process.feed(stream, b"half", eof=False)
    guest_process.started(stream)
    guest_process.quiet(0.1)
    assert len(os.listdir(tmp_path)) == 2
    guest_process.send(frames.KILL, stream)
    end = guest_process.end(stream)
    assert (end.how, end.gone) == (guest.KILLED, True)
    assert end.errno != 0
    assert (tmp_path / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_write_keeps_owner_and_mode_of_what_it_replaces(guest_process: Guest, tmp_path: Path) -> None:
    """An existing file's mode stays unless one is given; a link keeps its place, its target is replaced."""
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o751)
    (tmp_path / "link").symlink_to("f")
    assert guest_process.file(guest.WRITE, _path(tmp_path / "link"), b"new")[0].errno == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o751
    assert guest_process.file(guest.WRITE, _path(tmp_path / "f"), b"n", mode=0o600)[0].errno == 0
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600
    assert guest_process.file(guest.WRITE, _path(tmp_path / "link"), b"", flags=guest.NOFOLLOW)[0].errno == errno.ELOOP


def test_append_and_exclusive(guest_process: Guest, tmp_path: Path) -> None:
    """Append adds in place; exclusive refuses what exists."""
    path = _path(tmp_path / "log")
    for piece in (b"one", b"two"):
        assert guest_process.file(guest.WRITE, path, piece, flags=guest.APPEND)[0].errno == 0
    assert (tmp_path / "log").read_bytes() == b"onetwo"
    assert guest_process.file(guest.WRITE, path, b"", flags=guest.EXCLUSIVE)[0].errno == errno.EEXIST
    assert guest_process.file(guest.WRITE, _path(tmp_path / "new"), b"", flags=guest.EXCLUSIVE)[0].errno == 0


def test_a_device_is_written_into_not_replaced(guest_process: Guest) -> None:
    """Writing to /dev/null leaves it the device that it is."""
    assert guest_process.file(guest.WRITE, b"/dev/null", b"x")[0].errno == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_fifo_blocks_only_its_own_operation(guest_process: Guest, tmp_path: Path) -> None:
    """Reading a FIFO without a writer ends at its deadline; others go on meanwhile."""
    os.mkfifo(tmp_path / "fifo")
    run = guest.Run(kind=guest.FILE, file_op=guest.READ, path=_path(tmp_path / "fifo"), deadline_ms=400)
    stream = guest_process.start(run)
    assert guest_process.file(guest.STAT, _path(tmp_path / "fifo"))[0].errno == 0
    end = guest_process.end(stream)
    assert (end.how, end.gone) == (guest.DEADLINE, True)
    assert end.errno != 0


def test_list_recursive_and_limited(guest_process: Guest, tmp_path: Path) -> None:
    """Recursive names are relative paths; links are not followed; the limit is held."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_text("x")
    (tmp_path / "loop").symlink_to(".")
    _, listed = guest_process.file(guest.LIST_DIR, _path(tmp_path), flags=guest.RECURSIVE)
    entries = {entry.name: entry.stat for entry in guest.decode_entries(listed)}
    assert set(entries) == {b"a", b"a/b", b"a/b/f", b"loop"}
    assert stat.S_ISLNK(entries[b"loop"].mode)
    end, listed = guest_process.file(guest.LIST_DIR, _path(tmp_path), flags=guest.RECURSIVE, limit=2)
    assert len(list(guest.decode_entries(listed))) == 2
    assert struct.unpack("<Q", end.result) == (2,)


def test_mkdir_rename_symlink_readlink_change(guest_process: Guest, tmp_path: Path) -> None:
    """The small operations do what they say and give the record of what is there afterwards."""
    end, _ = guest_process.file(guest.MKDIR, _path(tmp_path / "d/e"), mode=0o700, flags=guest.PARENTS)
    assert stat.S_IMODE(guest.decode_stat(end.result).mode) == 0o700
    assert guest_process.file(guest.MKDIR, _path(tmp_path / "d/e"), flags=guest.PARENTS)[0].errno == 0
    assert guest_process.file(guest.RENAME, _path(tmp_path / "d/e"), path2=_path(tmp_path / "g"))[0].errno == 0
    end, _ = guest_process.file(guest.SYMLINK, _path(tmp_path / "l"), path2=b"g")
    assert stat.S_ISLNK(guest.decode_stat(end.result).mode)
    assert guest_process.file(guest.READLINK, _path(tmp_path / "l"))[1] == b"g"
    end, _ = guest_process.file(guest.STAT, _path(tmp_path / "l"))
    assert stat.S_ISDIR(guest.decode_stat(end.result).mode)
    end, _ = guest_process.file(guest.STAT, _path(tmp_path / "l"), flags=guest.NOFOLLOW)
    assert stat.S_ISLNK(guest.decode_stat(end.result).mode)
    end, _ = guest_process.file(guest.CHANGE, _path(tmp_path / "g"), mode=0o711)
    assert stat.S_IMODE(guest.decode_stat(end.result).mode) == 0o711


def test_remove_never_follows_links(guest_process: Guest, tmp_path: Path) -> None:
    """Recursive removal takes the links, not what they lead to, and counts what it removed."""
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "f").write_text("x")
    (tmp_path / "go" / "sub").mkdir(parents=True)
    (tmp_path / "go" / "link").symlink_to(tmp_path / "keep")
    (tmp_path / "go" / "sub" / "f").write_text("x")
    assert guest_process.file(guest.REMOVE, _path(tmp_path / "go"))[0].errno == errno.ENOTEMPTY
    end, _ = guest_process.file(guest.REMOVE, _path(tmp_path / "go"), flags=guest.RECURSIVE)
    assert (end.errno, struct.unpack("<Q", end.result)) == (0, (4,))
    assert (tmp_path / "keep" / "f").exists()
    assert not (tmp_path / "go").exists()


def test_a_very_deep_tree_is_removed(guest_process: Guest, tmp_path: Path) -> None:
    """Twelve hundred levels need neither a descriptor nor a stack frame each."""
    top = tmp_path / "deep"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        end, _ = guest_process.file(guest.REMOVE, _path(top), flags=guest.RECURSIVE)
        assert (end.errno, struct.unpack("<Q", end.result)) == (0, (1201,))
        assert not top.exists()
    finally:  # pytest's own removal of old directories recurses, and would fail in a later run
        subprocess.run(["rm", "-rf", str(top)], check=True)


@AS_NOBODY
def test_operations_have_the_rights_of_their_user(guest_process: Guest, tmp_path: Path) -> None:
    """A user cannot write where it may not, nor replace a file that it may not write; what it writes is its own."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)  # one of them may be /tmp, which has to stay what it is
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "root").write_text("root's")
    write = guest.WRITE
    assert guest_process.file(write, _path(tmp_path / "no"), b"", user=b"nobody")[0].errno == errno.EACCES
    assert guest_process.file(write, _path(tmp_path / "open/root"), b"", user=b"nobody")[0].errno == errno.EACCES
    end, _ = guest_process.file(write, _path(tmp_path / "open/mine"), b"x", user=b"nobody")
    assert (end.errno, guest.decode_stat(end.result).uid) == (0, 65534)
    end, _ = guest_process.file(write, _path(tmp_path / "owned"), b"x", owner=b"nobody")
    assert (end.errno, guest.decode_stat(end.result).uid) == (0, 65534)


def test_a_full_disk_is_told_and_leaves_nothing(guest_process: Guest, tmp_path: Path) -> None:
    """A write that the file size limit stops gives its errno and no temporary file. /dev/full gives ENOSPC."""
    assert guest_process.file(guest.WRITE, b"/dev/full", b"x" * 100)[0].errno == errno.ENOSPC


def test_paths_are_relative_to_cwd(guest_process: Guest, tmp_path: Path) -> None:
    """A relative path starts at cwd; an unknown cwd is a refusal."""
    assert guest_process.file(guest.WRITE, b"rel", b"x", cwd=_path(tmp_path))[0].errno == 0
    assert (tmp_path / "rel").exists()
    run = guest.Run(kind=guest.FILE, file_op=guest.STAT, path=b"x", cwd=b"/no/such")
    assert guest_process.refused(guest_process.start(run)).step == b"cwd"
