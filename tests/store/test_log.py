"""The event log: what is torn is told, what is whole is never lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from proofbox.errors import StoreFailed
from proofbox.model.ids import TrialId
from proofbox.model.outcome import HitLimit
from proofbox.model.trace import AttemptEnded, AttemptStarted, Event, Failure, Payload, RunOpened, TrialEnded
from proofbox.model.verdict import Verdict
from proofbox.store.log import LogFile, LogReader, encode_line

TRIAL = TrialId("HumanEval/0", 0)
EVENTS: list[Event] = [
    RunOpened(at=1.0),
    AttemptStarted(trial=TRIAL, attempt=1, at=2.0),
    AttemptEnded(
        trial=TRIAL,
        attempt=1,
        at=3.0,
        ending="limit",
        verdict=Verdict(ending="limit", limit=HitLimit(kind="wall", limit=3.0, used=None, elapsed=3.01)),
        candidate=Payload.of("line\u2028separator é".encode()),
        log=Payload.of(b"\xff\x00\n"),
    ),
    TrialEnded(trial=TRIAL, attempt=1, at=4.0, ending="limit", reward=0.0),
]


def lines() -> list[bytes]:
    return [encode_line(event, i) for i, event in enumerate(EVENTS)]


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    """What is appended is read back equal, in order, across two openings."""
    log = tmp_path / "events.jsonl"
    for part in (EVENTS[:2], EVENTS[2:]):
        file = LogFile(log)
        file.append(part, durable=True)
        file.close()
    assert list(LogReader(log)) == EVENTS


def test_a_log_cut_at_any_byte_keeps_all_lines_before_it(tmp_path: Path) -> None:
    """For every length: the whole lines are read, the rest is told, and a new writer goes on behind the whole ones."""
    log = tmp_path / "events.jsonl"
    whole = lines()
    data = b"".join(whole)
    ends = [sum(map(len, whole[:i])) for i in range(len(whole) + 1)]
    for cut in range(len(data) + 1):
        log.write_bytes(data[:cut])
        kept = max(i for i, end in enumerate(ends) if end <= cut)
        reader = LogReader(log)
        assert list(reader) == EVENTS[:kept]
        assert (reader.good, reader.torn) == (ends[kept], cut - ends[kept])
        file = LogFile(log)
        assert file.dropped == cut - ends[kept]
        file.append([EVENTS[0]], durable=False)
        file.close()
        assert list(LogReader(log)) == [*EVENTS[:kept], EVENTS[0]]


def test_any_byte_of_the_last_line_overwritten_drops_only_that_line(tmp_path: Path) -> None:
    """A last line with one wrong byte anywhere is told from a good one by its checksum."""
    log = tmp_path / "events.jsonl"
    before, last = b"".join(lines()[:-1]), lines()[-1]
    for i in range(len(last)):
        log.write_bytes(before + last[:i] + bytes([last[i] ^ 0x80]) + last[i + 1 :])
        reader = LogReader(log)
        assert list(reader) == EVENTS[:-1]
        assert reader.torn == len(last)


@pytest.mark.parametrize("damage", ["byte", "missing", "twice"])
def test_damage_before_the_last_line_is_an_error_and_changes_nothing(tmp_path: Path, damage: str) -> None:
    """A wrong, missing or repeated line in the middle may hide a booked result: it is refused, reading and writing."""
    log = tmp_path / "events.jsonl"
    whole = lines()
    middle = {"byte": [whole[1].replace(b"2.0", b"9.0")], "missing": [], "twice": [whole[1], whole[1]]}[damage]
    data = b"".join([whole[0], *middle, *whole[2:]])
    log.write_bytes(data)
    with pytest.raises(StoreFailed, match=r"damaged at line \d"):
        list(LogReader(log))
    with pytest.raises(StoreFailed, match="damaged"):
        LogFile(log)
    assert log.read_bytes() == data


def test_a_newer_format_is_refused_even_in_the_last_line(tmp_path: Path) -> None:
    """A line of a format to come is not torn: nothing is cut off, and the message says to upgrade."""
    log = tmp_path / "events.jsonl"
    data = b"".join(lines()) + b'{"v":2,"n":4,"c":"whatever","e":{}}\n'
    log.write_bytes(data)
    with pytest.raises(StoreFailed, match=r"format 2.*upgrade"):
        LogFile(log)
    assert log.read_bytes() == data


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    """The second writer gets an error that names the run; after the first one has gone it may write."""
    log = tmp_path / "run-1" / "events.jsonl"
    log.parent.mkdir()
    first = LogFile(log)
    with pytest.raises(StoreFailed, match="another process is writing the run run-1"):
        LogFile(log)
    first.append(EVENTS[:1], durable=True)
    first.close()
    second = LogFile(log)
    second.append(EVENTS[1:2], durable=True)
    second.close()
    assert list(LogReader(log)) == EVENTS[:2]


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    """A NaN becomes null in JSON, which no reader takes as a float: the writer refuses it and the log stays whole."""
    file = LogFile(tmp_path / "events.jsonl")
    file.append(EVENTS[:1], durable=True)
    with pytest.raises(StoreFailed, match="cannot be recorded"):
        file.append([RunOpened(at=float("nan"))], durable=True)
    with pytest.raises(StoreFailed, match="cannot be recorded"):
        file.append(EVENTS[:1], durable=True)
    file.close()
    assert list(LogReader(tmp_path / "events.jsonl")) == EVENTS[:1]


def test_a_failure_keeps_text_from_hostile_places(tmp_path: Path) -> None:
    """Newlines, escapes and non-ASCII in a message stay inside their line."""
    failure = Failure(
        code="sandbox_lost", blame="host", again="later", phase="verify", message='a\n{"v":1}\x1b[2J\u2028'
    )
    event = AttemptEnded(trial=TRIAL, attempt=1, at=0.0, ending="infrastructure", failure=failure)
    file = LogFile(tmp_path / "events.jsonl")
    file.append([event, *EVENTS[:1]], durable=True)
    file.close()
    assert list(LogReader(tmp_path / "events.jsonl")) == [event, EVENTS[0]]


WRITER = """
    import resource, sys
    from pathlib import Path
    from proofbox.errors import StoreFailed
    from proofbox.model.trace import RunOpened
    from proofbox.store.log import LogFile
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
    log = LogFile(Path(sys.argv[1]))
    try:
        for i in range(1_000_000):
            log.append([RunOpened(at=float(i))], durable=True)
            print(i, flush=True)
    except StoreFailed as error:
        print("failed", error, flush=True)
    try:
        log.append([RunOpened(at=0.0)], durable=True)
    except StoreFailed as error:
        print("failed", error, flush=True)
"""


def _writer(log: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(log), *arguments], stdout=subprocess.PIPE, text=True
    )


def test_kill_9_of_the_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """A writer killed at any moment leaves a log that has, in order, at least all that it had acknowledged."""
    log = tmp_path / "events.jsonl"
    acknowledged = -1
    with _writer(log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged == 50:
                os.kill(process.pid, signal.SIGKILL)
    times = [event.at for event in LogReader(log)]
    assert acknowledged >= 50
    assert times == [float(i) for i in range(len(times))]
    assert len(times) >= acknowledged + 1
    LogFile(log).close()


def test_a_full_disk_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """Where the file cannot grow, the append fails with what to do, fails again, and all before it is whole."""
    log = tmp_path / "events.jsonl"
    with _writer(log, "5000") as process:
        assert process.stdout is not None
        output = process.stdout.read().splitlines()
    acknowledged = [line for line in output if not line.startswith("failed")]
    failures = output[len(acknowledged) :]
    assert len(failures) == 2
    assert "make room, then resume the run" in failures[0]
    reader = LogReader(log)
    assert len(list(reader)) == len(acknowledged) > 10
    assert reader.torn == 0
