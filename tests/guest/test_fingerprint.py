"""The lines by which a guest tells what is around it."""

from __future__ import annotations

from pathlib import Path

from tests.guest.driver import Guest

from proofbox.wire import frames
from proofbox.wire import guest as wire
from proofbox.wire.fingerprint import FINGERPRINT, FULL, decode_lines


def test_lines_come_on_pipe_one(guest_process: Guest) -> None:
    """The cheap form names mounts and counts what is written, and the operation succeeds."""
    end, raw = guest_process.file(FINGERPRINT, b"/")
    assert (end.how, end.code, end.errno) == (wire.EXITED, 0, 0)
    lines = decode_lines(raw)
    assert any(line.startswith("/ ") for line in lines["mounts"])
    assert lines["files"][0].startswith("writable at / blocks ")
    assert not lines["users"]


def test_a_hello_that_asks_for_it_is_answered_with_lines(binary: Path) -> None:
    """They come with the guest's first word, without an operation of their own."""
    with Guest(binary, fingerprint=True) as told:
        assert decode_lines(told.hello.fingerprint)["mounts"]
        with Guest(binary) as silent:
            assert silent.hello.fingerprint == b""


def test_a_look_tells_what_is_there_now(binary: Path) -> None:
    """As often as it is asked for, beside commands, in the form of the first word."""
    with Guest(binary, fingerprint=True) as told:
        stream = told.argv("sleep", "100")
        told.started(stream)
        for _ in range(2):
            told.send(frames.LOOK, 0)
            lines = decode_lines(told.wait(0, frames.LOOKED).payload)
            assert lines["environment"] == decode_lines(told.hello.fingerprint)["environment"]
            assert lines["mounts"]


def test_files_that_are_skipped_are_not_looked_at(guest_process: Guest, tmp_path: Path) -> None:
    """The full form names every file, but only says of these that they are there; it can be cancelled half-way."""
    skipped = tuple(bytes(path) for path in Path("/").iterdir() if path.name not in ("etc", "proc"))
    end, raw = guest_process.file(FINGERPRINT, b"/", flags=FULL, args=skipped)
    assert end.errno == 0
    files = decode_lines(raw)["files"]
    assert any(line.startswith("/etc/passwd 100644 0 0 links ") for line in files)
    assert "/usr not looked at" in files
    assert not any(line.startswith(("/usr/", "/proc/")) for line in files)


def test_a_walk_ends_when_it_is_killed(guest_process: Guest) -> None:
    """A host that lost interest does not wait for a walk over all files."""
    guest_process.refill = False
    stream = guest_process.start(wire.Run(kind=wire.FILE, file_op=FINGERPRINT, path=b"/", flags=FULL))
    guest_process.send(frames.KILL, stream)
    assert guest_process.end(stream).how == wire.KILLED
