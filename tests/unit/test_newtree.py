"""A new tree that is filled with what others name: nothing lands outside, and no link that is let in leads out."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.kit.newtree import Entry, Misplaced, NewTree, stays_inside

NAMES = st.sampled_from([b"a", b"b", b"c"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
TARGETS = st.lists(st.sampled_from([b"a", b"b", b"c", b"..", b".."]), min_size=1, max_size=5).map(b"/".join)


def fill(top: Path, *entries: Entry) -> None:
    """All of them, into a tree that must not be there."""
    tree = NewTree(top, mode=0o700, strict=True, left_out=lambda why, path: None)
    try:
        for entry in entries:
            tree.put(entry)
        tree.finish()
    finally:
        tree.close()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(PATHS, st.none() | TARGETS), max_size=12))
def test_a_link_that_is_said_to_stay_inside_does(items: list[tuple[bytes, bytes | None]]) -> None:
    """Whatever directories and other such links there are: the kernel resolves it to a place in the tree."""
    with tempfile.TemporaryDirectory() as held:
        top = Path(os.path.realpath(held)) / "x" / "top"
        top.parent.mkdir()
        tree = NewTree(top, mode=0o700, strict=True, left_out=lambda why, path: None)
        links = []
        for path, target in items:
            if target is not None and not stays_inside(path, target):
                continue
            kind = stat.S_IFDIR | 0o700 if target is None else stat.S_IFLNK | 0o777
            try:
                tree.put(Entry(path, kind, 0, 0, target or b""))
            except Misplaced:
                continue
            links += [path] if target is not None else []
        tree.close()
        for path in links:
            end = os.path.realpath(os.path.join(os.fsencode(top), path))
            assert end == os.fsencode(top) or end.startswith(os.fsencode(top) + b"/"), path


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        (b"l", b"a", True),
        (b"l", b"./a//b/", True),
        (b"d/l", b"../a", True),
        (b"d/l", b"..", True),
        (b"l", b"", True),
        (b"l", b"..", False),
        (b"d/l", b"../../a", False),
        (b"l", b"a/..", False),
        (b"d/l", b"a/../..", False),
        (b"l", b"/", False),
        (b"l", b"/etc/passwd", False),
    ],
)
def test_where_a_link_leads_is_told_from_its_text(path: bytes, target: bytes, inside: bool) -> None:
    """Up first, not above the tree, and then only down."""
    assert stays_inside(path, target) is inside


def test_a_hard_link_is_of_a_file_only(tmp_path: Path) -> None:
    """A second name of a symbolic link would lead elsewhere from another depth."""
    link = Entry(b"d/l", stat.S_IFLNK | 0o777, 0, 0, b"../x")
    with pytest.raises(Misplaced, match="which is no file"):
        fill(tmp_path / "t", link, Entry(b"h", stat.S_IFREG | 0o600, 0, 0, b"d/l", hard=True))


def test_directories_get_what_they_say_last(tmp_path: Path) -> None:
    """One that nobody may write to still holds what lies in it, and its time is not that of what was made in it."""
    file = Entry(b"d/f", stat.S_IFREG | 0o640, 0, 0, mtime=2_000_000_000)
    fill(tmp_path / "t", Entry(b"d", stat.S_IFDIR | 0o500, 0, 0, mtime=1_000_000_000), file)
    found = (tmp_path / "t/d").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o500, 1_000_000_000)
    assert (tmp_path / "t/d/f").stat().st_mtime_ns == 2_000_000_000
    (tmp_path / "t/d").chmod(0o700)
