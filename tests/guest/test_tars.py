"""Whole directories as tar archives, out of the guest and into it; nothing in an archive leads out of its root."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox.wire import frames, guest, tar
from proofbox.wire.tar import TarDecoder

from .driver import Guest

ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may give files away, become another user or make devices"
)
Member = tuple[tarfile.TarInfo, bytes]


def _path(path: Path | str) -> bytes:
    return os.fsencode(path)


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
) -> Member:
    """One hand-made entry."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, target, mode, len(content)
    return info, content


def archive(*members: Member, form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar as the standard library writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, errors="surrogateescape") as made:
        for info, content in members:
            made.addfile(info, io.BytesIO(content))
    return out.getvalue()


def unpack(running: Guest, into: Path, raw: bytes, **more: object) -> tuple[guest.End, bytes]:
    """A whole extraction: its END, and the path that failed."""
    values: dict[str, object] = {"kind": guest.FILE, "file_op": guest.WRITE_TREE, "path": _path(into), **more}
    stream = running.start(guest.Run(**values))  # type: ignore[arg-type]
    running.feed(stream, raw)
    return running.end(stream), running.out(stream, 2)


def pack(
    running: Guest, top: Path | str, **more: object
) -> tuple[guest.End, list[tar.Entry], dict[bytes, bytes], bytes]:
    """A whole archive: END, entries, contents, and the raw bytes."""
    end, raw = running.file(guest.READ_TREE, _path(top))
    decoder, entries, contents = TarDecoder(), [], {}
    for item in decoder.feed(raw):
        if isinstance(item, tar.Entry):
            entries.append(item)
            contents[item.path] = b""
        else:
            contents[entries[-1].path] += item
    assert decoder.whole == (end.errno == 0)
    return end, entries, contents, raw


def picture(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything below, links not followed."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        st = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        time = None if path.is_symlink() else st.st_mtime_ns
        found[os.fsdecode(path.relative_to(top))] = (stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode), time, content)
    return found


def test_a_tree_comes_out_and_goes_in_as_it_was(guest_process: Guest, tmp_path: Path) -> None:
    """Kinds, contents, modes, times, links and hard links, names of any bytes, deep and long ones."""
    top, copy = tmp_path / "top", tmp_path / "copy"
    deep = top.joinpath(*["d" * 60] * 6)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(os.urandom(100_000))
    (top / "empty").write_bytes(b"")
    (top / os.fsdecode(b"\xff\xfe\nname")).write_bytes(b"odd")
    (deep / os.fsdecode(b"\xff" * 200)).write_bytes(b"odd and long")
    (top / "script").write_text("#!/bin/sh\n")
    (top / "script").chmod(0o4751)
    os.link(top / "script", top / "twin")
    (top / "link").symlink_to("/etc/passwd")
    (top / "long link").symlink_to("x/" * 150 + "y")
    os.mkfifo(top / "fifo", 0o622)
    (top / "closed").mkdir()
    (top / "closed" / "f").write_text("x")
    (top / "closed").chmod(0o555)
    os.utime(top / "empty", ns=(0, 1_234_567_890_123_456_789))
    os.utime(top / "script", ns=(0, -1_500_000_000))
    end, entries, _, raw = pack(guest_process, top)
    counts = guest.decode_tree_counts(end.result)
    assert (end.errno, counts.entries, counts.left_out) == (0, len(entries), 0)
    assert sum(entry.size for entry in entries) == counts.size
    end, where = unpack(guest_process, copy, raw, flags=guest.PARENTS)
    assert (end.errno, where) == (0, b"")
    assert guest.decode_tree_counts(end.result) == counts
    assert picture(copy) == picture(top)
    assert (copy / "script").stat().st_ino == (copy / "twin").stat().st_ino
    for closed in (top / "closed", copy / "closed"):
        closed.chmod(0o755)


def test_gnu_tar_reads_what_comes_out_and_writes_what_goes_in(guest_process: Guest, tmp_path: Path) -> None:
    """The archive is one for everybody, and theirs is one for us, in each of their formats."""
    top = tmp_path / "top"
    (top / ("n" * 90) / ("m" * 90)).mkdir(parents=True)
    (top / ("n" * 90) / ("m" * 90) / "file").write_text("deep")
    (top / "link").symlink_to("y/" * 75)
    (top / "plain").write_text("plain")
    raw = pack(guest_process, top)[3]
    (tmp_path / "theirs").mkdir()
    subprocess.run(["tar", "-xf", "-", "-C", str(tmp_path / "theirs")], input=raw, check=True)
    assert picture(tmp_path / "theirs") == picture(top)
    for form in ("gnu", "posix", "oldgnu"):
        made = subprocess.run(
            ["tar", "-C", str(top), f"--format={form}", "-cf", "-", "."], stdout=-1, check=True
        ).stdout
        end, where = unpack(guest_process, tmp_path / form, made, flags=guest.PARENTS)
        assert (end.errno, where) == (0, b""), form
        got = {name: (kind, mode, content) for name, (kind, mode, _, content) in picture(tmp_path / form).items()}
        assert got == {name: (kind, mode, content) for name, (kind, mode, _, content) in picture(top).items()}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: ten thousand files on a busy disk take long."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as held:
        yield Path(held)


def test_many_small_files_and_a_large_one(guest_process: Guest, memory: Path) -> None:
    """Five thousand files, and fifty million bytes, are no more than a matter of time."""
    top = memory / "top"
    for number in range(100):
        (top / f"{number}").mkdir(parents=True)
        for inner in range(50):
            (top / f"{number}" / f"{inner}").write_bytes(b"%d" % inner)
    (top / "large").write_bytes(os.urandom(1 << 20) * 48)
    raw = pack(guest_process, top)[3]
    end, _ = unpack(guest_process, memory / "copy", raw, flags=guest.PARENTS)
    assert (end.errno, guest.decode_tree_counts(end.result).entries) == (0, 5101)
    assert picture(memory / "copy") == picture(top)


HOSTILE = {
    "absolute": ([member("/abs", b"x")], errno.EINVAL, b"/abs"),
    "dots": ([member("../outside", b"x")], errno.EINVAL, b"../outside"),
    "inner dots": ([member("a/../../outside", b"x")], errno.EINVAL, b"a/../../outside"),
    "through a link": (
        [member("door", kind=tarfile.SYMTYPE, target="{out}"), member("door/outside", b"x")],
        errno.ELOOP,
        b"door/outside",
    ),
    "through a link upwards": (
        [member("door", kind=tarfile.SYMTYPE, target=".."), member("door/outside", b"x")],
        errno.ELOOP,
        b"door/outside",
    ),
    "a directory over a link": (
        [member("door", kind=tarfile.SYMTYPE, target="{out}"), member("door", kind=tarfile.DIRTYPE, mode=0o777)],
        errno.ELOOP,
        b"door",
    ),
    "a hard link out": ([member("peek", kind=tarfile.LNKTYPE, target="../out/secret")], errno.EINVAL, b"peek"),
    "an absolute hard link": ([member("peek", kind=tarfile.LNKTYPE, target="{out}/secret")], errno.EINVAL, b"peek"),
    "a hard link through a link": (
        [
            member("door", kind=tarfile.SYMTYPE, target="{out}"),
            member("peek", kind=tarfile.LNKTYPE, target="door/secret"),
        ],
        errno.ELOOP,
        b"peek",
    ),
    "a hard link to nothing": ([member("peek", kind=tarfile.LNKTYPE, target="none")], errno.ENOENT, b"peek"),
    "a device": ([member("dev", kind=tarfile.CHRTYPE)], errno.EPERM, b"dev"),
    "a disk": ([member("d/dev", kind=tarfile.BLKTYPE)], errno.EPERM, b"d/dev"),
    "a sparse file": ([member("s", kind=tarfile.GNUTYPE_SPARSE)], errno.EOPNOTSUPP, b"s"),
    "a file over a directory": (
        [member("d", kind=tarfile.DIRTYPE, mode=0o755), member("d", b"x")],
        errno.EISDIR,
        b"d",
    ),
    "a way through a file": ([member("f", b"x"), member("f/x", b"x")], errno.ENOTDIR, b"f/x"),
    "too deep": ([member("x/" * 300 + "y", b"x")], errno.ENAMETOOLONG, b"x/" * 300 + b"y"),
    "too long a name": ([member("n" * 300, b"x")], errno.ENAMETOOLONG, b"n" * 300),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_in_an_archive_leads_out_of_its_root(guest_process: Guest, tmp_path: Path, name: str) -> None:
    """Each is refused with its errno and the path of the entry; what came before it is there, nothing outside is
    touched.
    """
    members, wanted, path = HOSTILE[name]
    out, into = tmp_path / "out", tmp_path / "into"
    for made in (out, into):
        made.mkdir()
    (out / "secret").write_text("secret")
    (out / "secret").chmod(0o600)
    made_members = [member("before", b"x")]
    for info, content in members:
        again = tarfile.TarInfo(info.name)
        again.type, again.mode, again.size = info.type, info.mode, info.size
        again.linkname = info.linkname.replace("{out}", str(out))
        made_members.append((again, content))
    end, where = unpack(guest_process, into, archive(*made_members))
    assert (errno.errorcode[end.errno], where) == (errno.errorcode[wanted], path)
    assert (into / "before").read_bytes() == b"x"
    assert os.listdir(out) == ["secret"]
    assert stat.S_IMODE(out.stat().st_mode) & 0o022 == 0
    assert not [entry for entry in os.listdir(into) if entry.startswith(".proofbox-")]


def test_a_file_replaces_what_has_its_name_and_writes_through_nothing(guest_process: Guest, tmp_path: Path) -> None:
    """A link, a FIFO and a file with a second name give way; what they led to stays as it was."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    into = tmp_path / "into"
    into.mkdir()
    (into / "link").symlink_to(victim)
    os.link(victim, into / "second")
    os.mkfifo(into / "fifo")
    (into / "kept").write_text("kept")
    end, _ = unpack(guest_process, into, archive(*[member(name, b"new") for name in ("link", "second", "fifo")]))
    assert end.errno == 0
    assert victim.read_text() == "precious"
    assert [path.read_bytes() for path in sorted(into.iterdir())] == [b"new", b"kept", b"new", b"new"]
    assert not (into / "link").is_symlink()


def test_directories_that_are_there_stay_what_they_are(guest_process: Guest, tmp_path: Path) -> None:
    """The root too: an archive of "." does not change who may write where it is unpacked."""
    into = tmp_path / "into"
    (into / "old").mkdir(parents=True)
    into.chmod(0o1777)
    (into / "old").chmod(0o700)
    members = [member(name, kind=tarfile.DIRTYPE, mode=0o755) for name in ("./", "./old/", "./new/", "./new/sub/")]
    end, where = unpack(guest_process, into, archive(*members, member("implied/file", b"x")))
    assert (end.errno, where) == (0, b"")
    modes = {name: stat.S_IMODE((into / name).stat().st_mode) for name in (".", "old", "new", "implied")}
    assert modes == {".": 0o1777, "old": 0o700, "new": 0o755, "implied": 0o755}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no archive at all",
        b"\x1f\x8b" + os.urandom(1000),
        archive(member("f", b"x" * 2000))[:1024],
        archive(member("f", b"x" * 2000))[:2560],
        archive(member("f", b"x" * 2000))[:2561],
        archive(member("f"))[:512],
    ],
    ids=["nothing", "short", "packed", "in the content", "after the content", "in a header", "before the end"],
)
def test_what_is_no_whole_archive_is_told(guest_process: Guest, tmp_path: Path, raw: bytes) -> None:
    """EBADMSG, and no half of a file is left."""
    end, _ = unpack(guest_process, tmp_path / "into", raw, flags=guest.PARENTS)
    assert end.errno == errno.EBADMSG
    assert all(path.stat().st_size in (0, 2000) for path in (tmp_path / "into").iterdir())


def test_what_is_wrong_with_the_directory_is_told(guest_process: Guest, tmp_path: Path) -> None:
    """A file, nothing, and a link where links are not to be followed, in both directions."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for operation in (guest.READ_TREE, guest.WRITE_TREE):
        for name, flags, wanted in (
            ("file", 0, errno.ENOTDIR),
            ("none", 0, errno.ENOENT),
            ("file/below", guest.PARENTS, errno.ENOTDIR),
            ("link", guest.NOFOLLOW, errno.ENOTDIR),
        ):
            data = archive(member("f")) if operation == guest.WRITE_TREE else None
            end, _ = guest_process.file(operation, _path(tmp_path / name), data, flags=flags)
            assert (operation, name, end.errno) == (operation, name, wanted)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_sockets_are_left_out_and_counted(guest_process: Guest, tmp_path: Path) -> None:
    """An archive cannot hold one, and it is worth nothing without who listens."""
    import socket

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
    (tmp_path / "f").write_text("x")
    end, entries, _, _ = pack(guest_process, tmp_path)
    assert ([entry.path for entry in entries], guest.decode_tree_counts(end.result).left_out) == ([b"f"], 1)


@ROOT
def test_what_the_kernel_makes_up_is_no_part_of_a_tree(guest_process: Guest, tmp_path: Path) -> None:
    """/proc below the directory is there, and empty: an archive of "/" has an end."""
    (tmp_path / "proc").mkdir()
    subprocess.run(["mount", "-t", "proc", "proc", str(tmp_path / "proc")], check=True)
    try:
        end, entries, _, _ = pack(guest_process, tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path / "proc")], check=True)
    assert (end.errno, [(entry.type, entry.path) for entry in entries]) == (0, [(tar.DIRECTORY, b"proc")])


@ROOT
def test_owners_are_those_asked_for(guest_process: Guest, tmp_path: Path) -> None:
    """The one that is named, or with the flag those of the archive; else the user that runs it."""
    info, content = member("d/f", b"x")
    info.uid, info.gid = 1234, 3_000_000
    raw = archive(info_directory(1234), (info, content), form=tarfile.PAX_FORMAT)
    for name, more, wanted in (
        ("plain", {}, (0, 0)),
        ("named", {"owner": b"nobody"}, (65534, 65534)),
        ("kept", {"flags": guest.PARENTS | guest.OWNERS}, (1234, 3_000_000)),
    ):
        end, where = unpack(guest_process, tmp_path / name, raw, **{"flags": guest.PARENTS, **more})
        assert (end.errno, where) == (0, b"")
        found = (tmp_path / name / "d/f").stat()
        assert (name, found.st_uid, found.st_gid) == (name, *wanted)
        assert (tmp_path / name / "d").stat().st_uid == wanted[0]


def info_directory(uid: int) -> Member:
    """A directory that belongs to somebody."""
    info, content = member("d", kind=tarfile.DIRTYPE, mode=0o700)
    info.uid = uid
    return info, content


@ROOT
def test_a_tree_is_read_and_written_with_the_rights_of_the_user(guest_process: Guest, tmp_path: Path) -> None:
    """What the user may not read or write fails, with the path of it."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)  # one of them may be /tmp, which has to stay what it is
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/secret").write_text("x")
    (tmp_path / "d/e/secret").chmod(0o600)
    end, _ = guest_process.file(guest.READ_TREE, _path(tmp_path / "d"), user=b"nobody")
    assert end.errno == errno.EACCES
    assert guest_process.out(guest_process.next_stream, 2) == b"e/secret"
    end, where = unpack(guest_process, tmp_path / "d", archive(member("e/new", b"x")), user=b"nobody")
    assert (end.errno, where) == (errno.EACCES, b"e/new")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    end, where = unpack(guest_process, tmp_path / "open/d", archive(member("f", b"x")), user=b"nobody", flags=1)
    assert (end.errno, where) == (0, b"")
    assert (tmp_path / "open/d/f").stat().st_uid == 65534


@ROOT
def test_a_disk_that_becomes_full_is_told_with_the_path(guest_process: Guest, tmp_path: Path) -> None:
    """ENOSPC at the entry that has no room; those before it are whole, of it nothing is left, and its room is free."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        raw = archive(*[member(f"{number}", b"x" * 300_000) for number in range(6)])
        end, where = unpack(guest_process, small, raw)
        assert (end.errno, where) == (errno.ENOSPC, b"3")
        assert sorted(os.listdir(small)) == ["0", "1", "2"]
        assert all((small / name).stat().st_size == 300_000 for name in "012")
        (small / "room").write_bytes(b"y" * 100_000)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_killed_extraction_leaves_whole_files_only(guest_process: Guest, tmp_path: Path) -> None:
    """KILL in the middle of an entry: those before it stay, and nothing of it."""
    stream = guest_process.start(guest.Run(kind=guest.FILE, file_op=guest.WRITE_TREE, path=_path(tmp_path), stdin=True))
    raw = archive(member("first", b"x" * 1000), member("second", b"y" * 200_000))
    guest_process.feed(stream, raw[:50_000], eof=False)
    guest_process.started(stream)
    while not (tmp_path / "first").exists():
        guest_process.quiet(0.02)
    guest_process.send(frames.KILL, stream)
    end = guest_process.end(stream)
    assert (end.how, end.gone) == (guest.KILLED, True)
    assert end.errno != 0
    assert os.listdir(tmp_path) == ["first"]


def test_the_same_operation_never_acts_twice(guest_process: Guest, tmp_path: Path) -> None:
    """A second RUN of its number gets the first answer, and what was removed since stays removed."""
    run = guest.Run(kind=guest.FILE, file_op=guest.WRITE_TREE, path=_path(tmp_path))
    stream = guest_process.start(run)
    guest_process.feed(stream, archive(member("f", b"x")))
    first = guest_process.end(stream)
    (tmp_path / "f").unlink()
    guest_process.start(run, stream)
    assert guest_process.end(stream) == first
    assert os.listdir(tmp_path) == []
