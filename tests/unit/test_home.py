"""Files that have their old content or their new one, and of which nothing is left half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proofbox.host.home import sweep_unfinished, write_atomically

KILLED = """
import os, signal, sys
from pathlib import Path
from proofbox.host import home
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
home.write_atomically(Path(sys.argv[1]), b"new")
"""


def test_what_a_killed_writer_left_is_swept_and_the_old_content_stays(tmp_path: Path) -> None:
    """With ``kill -9`` before the new one has its name. Other hidden files are none of ours."""
    path = tmp_path / "name"
    write_atomically(path, b"old")
    (tmp_path / ".other").touch()
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3
    assert sweep_unfinished(tmp_path) == 1
    assert {each.name for each in tmp_path.iterdir()} == {"name", ".other"}
    assert path.read_bytes() == b"old"
    assert sweep_unfinished(tmp_path / "missing") == 0


def test_a_writer_that_lives_is_not_disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is at it, in the middle."""
    writes, swept = threading.Event(), threading.Event()
    sync = os.fsync

    def slow(file: int) -> None:
        writes.set()
        swept.wait()
        sync(file)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(1) as other:
        written = other.submit(write_atomically, tmp_path / "name", b"new")
        writes.wait()
        assert sweep_unfinished(tmp_path) == 0
        swept.set()
        written.result()
    assert (tmp_path / "name").read_bytes() == b"new"
    assert sweep_unfinished(tmp_path) == 0


def test_writers_and_sweepers_at_once_lose_nothing(tmp_path: Path) -> None:
    """At whatever instant one sweeps: each write ends with a whole file, and in the end there is nothing else."""
    ended = threading.Event()

    def sweep() -> None:
        while not ended.is_set():
            sweep_unfinished(tmp_path)

    def write(number: int) -> None:
        for again in range(50):
            write_atomically(tmp_path / str(number), f"{number} {again}".encode())
            assert (tmp_path / str(number)).read_bytes() == f"{number} {again}".encode()

    with ThreadPoolExecutor(6) as threads:
        sweepers = [threads.submit(sweep) for _ in range(2)]
        try:
            list(threads.map(write, range(4)))
        finally:
            ended.set()
        for sweeper in sweepers:
            sweeper.result()
    assert {each.name for each in tmp_path.iterdir()} == set("0123")
