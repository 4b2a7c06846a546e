"""Small helpers: removing trees, taking locks."""

from __future__ import annotations

import os
from pathlib import Path

from proofbox.kit.lock import try_lock
from proofbox.kit.tree import remove_tree


def test_a_tree_without_permissions_is_removed_and_its_links_are_not_followed(tmp_path: Path) -> None:
    """Directories that nobody may enter, one in the other, go; what links point at stays."""
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o711)
    (kept / "file").write_text("x")
    inner = kept / "tree" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "link").symlink_to(tmp_path / "kept" / "file")
    (inner / "directory").symlink_to(kept)
    for path in (inner, inner.parent):
        path.chmod(0)
    remove_tree(kept / "tree")
    remove_tree(kept / "tree")
    assert sorted(os.listdir(kept)) == ["file"]
    assert kept.stat().st_mode & 0o777 == 0o711


def test_a_lock_is_had_once_and_only_of_a_file_that_is_there(tmp_path: Path) -> None:
    """None while another holds it, and none of a file that was never there or is gone."""
    path = tmp_path / "lock"
    assert try_lock(path) is None
    path.touch()
    mine = try_lock(path)
    assert mine is not None
    assert try_lock(path) is None
    os.close(mine)
    again = try_lock(path)
    assert again is not None
    os.close(again)
    path.unlink()
    assert try_lock(path) is None
