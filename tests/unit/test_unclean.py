"""The lasting record of unclean starts: whole lines from many processes, a bound on its size, in nobody's way."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.host.unclean import FILE, KEPT, LINE, note, noted

WRITER = """
import sys
from proofbox.host.unclean import note
number = int(sys.argv[1])
for _ in range(250):
    note("native", f"{number}", ["x" * number, "files: + /tmp/left"])
    sys.stdout.write(".")
    sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def record(own_record: Path) -> Path:
    """The file."""
    return own_record / FILE


def test_nothing_is_on_record_at_first(own_record: Path) -> None:
    """And looking makes nothing."""
    found = noted()
    assert (found.count, found.since, found.last) == (0, None, None)
    assert not own_record.exists()


def test_the_last_one_is_told_and_how_many_since_when(record: Path) -> None:
    """In the order in which they came."""
    for number in range(3):
        note("native", f"template{number}", ["files: + /etc/evil"])
    found = noted()
    assert found.count == 3
    assert found.last is not None
    assert found.since is not None
    assert found.since <= found.last.at
    assert (found.last.runtime, found.last.template) == ("native", "template2")
    assert found.last.differences == ("files: + /etc/evil",)
    assert record.stat().st_mode & 0o777 == 0o600


def test_many_processes_that_are_killed_leave_whole_lines(record: Path) -> None:
    """Six write at one time, and each is ended with ``kill -9`` in the middle: what was written is whole."""
    words = [sys.executable, "-c", WRITER]
    env = os.environ | {"PROOFBOX_HOME": str(record.parent)}
    pipe = subprocess.PIPE
    writers = [subprocess.Popen([*words, str(n)], env=env, stdin=pipe, stdout=pipe, bufsize=0) for n in range(6)]
    told = 0
    for writer in writers:
        assert writer.stdout is not None
        told += len(writer.stdout.read(20))
        writer.kill()
        told += len(writer.communicate()[0])
    whole = [json.loads(line) for line in record.read_bytes().split(b"\n") if line]
    assert {each["template"] for each in whole} == set("012345")
    assert all(each["template"] == str(len(each["differences"][0])) for each in whole)
    assert told <= len(whole) <= told + len(writers)
    assert noted().count == len(whole)


def test_it_does_not_grow_for_ever(record: Path) -> None:
    """Long lines are cut, and the oldest ones are dropped; what is told is since the first that is kept."""
    long = ["files: + /" + "x" * 5000] * 50
    begun = 0.0
    for number in range(2 * KEPT // LINE * 2):
        note("native", f"{number}", long)
        begun = begun or noted().since or 0.0
    sizes = [path.stat().st_size for path in record.parent.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < KEPT + LINE
    found = noted()
    assert found.since is not None
    assert found.since > begun
    assert found.count > KEPT // LINE
    assert found.last is not None
    assert found.last.template == str(number)
    for line in record.read_bytes().split(b"\n"):
        assert len(line) <= LINE


def test_a_torn_line_spoils_no_other(record: Path) -> None:
    """As after a disk that was full."""
    note("native", "before", [])
    with record.open("ab") as file:
        file.write(b'\n{"at": 1.0, "runt')
    note("native", "after", [])
    found = noted()
    assert found.count == 2
    assert found.last is not None
    assert found.last.template == "after"


def test_what_is_noted_can_be_shown(record: Path) -> None:
    """A file's name is whatever somebody chose: it gives no orders to a terminal, and need not be text."""
    note("oci:/a\x1b[2J", "t", ["files: + /\udcff\u202e\x1b]0;evil\x07"])
    found = noted()
    assert found.last is not None
    assert found.last.differences == ("files: + /???]0;evil?",)
    assert found.last.runtime == "oci:/a?[2J"


def test_a_record_that_cannot_be_written_is_logged_and_nothing_else(
    own_record: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Something else is in its place; a directory of somebody else's."""
    own_record.mkdir(mode=0o700)
    (own_record / FILE).symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        note("native", "template", ["files: + /etc/evil"])
    assert "not put on record" in caplog.text
    caplog.clear()
    own_record.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        note("native", "template", [])
    assert "nobody else can write" in caplog.text


def test_a_full_disk_is_logged_and_what_is_torn_is_dropped(record: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By a limit on the size of files, which the kernel enforces in the middle of a line as it does a full disk."""
    note("native", "before", [])
    size = record.stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                note("native", "lost", [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert "not put on record" in caplog.text
    note("native", "after", [])
    found = noted()
    assert found.count == 2
    assert found.last is not None
    assert found.last.template == "after"
