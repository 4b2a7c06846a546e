"""Digests of trees, read from the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proofbox.kit.durable import sync_file_system
from proofbox.templates.tree import listing, tree_digest

SIZE = 4 << 20


def _read_from_disk() -> int:
    """Bytes that this process had fetched from block devices."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def test_a_cold_digest_reads_what_the_disk_has(tmp_path: Path) -> None:
    """What was just written is in memory, from where the usual digest has it; the cold one does not believe that."""
    if not Path("/proc/self/io").exists() or os.major(tmp_path.stat().st_dev) == 0:
        pytest.skip("the kernel counts no reads of this directory's file system")
    for number in range(3):
        (tmp_path / str(number)).write_bytes(os.urandom(SIZE))
    sync_file_system(tmp_path)
    begun = _read_from_disk()
    warm = tree_digest(tmp_path)
    between = _read_from_disk()
    assert tree_digest(tmp_path, cold=True) == warm
    assert between - begun < SIZE
    assert _read_from_disk() - between >= 3 * SIZE


def test_a_cold_listing_is_the_same_one(tmp_path: Path) -> None:
    """With more files than are asked for at a time, of every kind."""
    for number in range(150):
        (tmp_path / f"file {number}").write_text(str(number))
    (tmp_path / "closed").mkdir(0o700)
    (tmp_path / "closed/inner").write_text("x" * 300_000)
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    sync_file_system(tmp_path)
    assert list(listing(tmp_path, cold=True)) == list(listing(tmp_path))
