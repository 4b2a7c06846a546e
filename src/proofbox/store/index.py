"""An SQLite index over the log of a run, for questions: made from the log when somebody asks; it can be deleted."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from proofbox.errors import StoreFailed
from proofbox.model.trace import AttemptEnded, Event, TrialEnded
from proofbox.store.log import LogReader
from proofbox.store.runs import RunDir

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE made (version INTEGER, size INTEGER);
CREATE TABLE attempts (
    task TEXT, trial INTEGER, attempt INTEGER, at REAL, ending TEXT, reason TEXT,
    code TEXT, blame TEXT, phase TEXT, kind TEXT, cause TEXT, candidate TEXT, log TEXT,
    PRIMARY KEY (task, trial, attempt)
);
CREATE TABLE timings (task TEXT, trial INTEGER, attempt INTEGER, phase TEXT, seconds REAL);
CREATE TABLE trials (task TEXT, trial INTEGER, attempt INTEGER, ending TEXT, reward REAL, PRIMARY KEY (task, trial));
CREATE INDEX attempts_ending ON attempts (ending, code);
"""


def open_index(run: RunDir) -> sqlite3.Connection:
    """A connection to an index that holds all of the log's whole lines. Blocks; the caller closes it.

    It is rebuilt where the log has grown. Where the directory cannot be written to, it is made in memory. Safe in
    parallel: each builds a file of its own and puts it in place when it is done. Raises ``StoreFailed``.
    """
    path = run.path / "index.sqlite"
    try:
        size = run.log.stat().st_size
    except OSError as error:
        raise StoreFailed(f"the log {run.log} cannot be read: {error.strerror}") from error
    if (fresh := _current(path, size)) is not None:
        return fresh
    if not os.access(run.path, os.W_OK):
        connection = sqlite3.connect(":memory:")
        _build(connection, run.events(), size)
        return connection
    handle, temporary = tempfile.mkstemp(prefix=".index-", dir=run.path)
    os.close(handle)
    try:
        connection = sqlite3.connect(temporary)
        try:
            _build(connection, run.events(), size)
        finally:
            connection.close()
        os.rename(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, (sqlite3.Error, OSError)):
            raise StoreFailed(f"the index {path} could not be made: {error}") from error
        raise
    return sqlite3.connect(path)


def _current(path: Path, size: int) -> sqlite3.Connection | None:
    if not path.exists():
        return None
    connection = sqlite3.connect(path)
    try:
        if connection.execute("SELECT version, size FROM made").fetchone() == (_VERSION, size):
            return connection
    except sqlite3.Error:
        pass  # not ours, or of another version: it is made again
    connection.close()
    return None


def _build(connection: sqlite3.Connection, events: LogReader, size: int) -> None:
    with connection:
        connection.executescript(_SCHEMA)
        for event in events:
            _insert(connection, event)
        connection.execute("INSERT INTO made VALUES (?, ?)", (_VERSION, size))


def _insert(connection: sqlite3.Connection, event: Event) -> None:
    if isinstance(event, TrialEnded):
        row = (event.trial.task, event.trial.index, event.attempt, event.ending, event.reward)
        connection.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?)", row)
    if not isinstance(event, AttemptEnded):
        return
    key = (event.trial.task, event.trial.index, event.attempt)
    failure = event.failure
    limit = event.verdict.limit if event.verdict else None
    connection.execute(
        "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *key,
            event.at,
            event.ending,
            event.reason,
            *((failure.code, failure.blame, failure.phase) if failure else (None, None, None)),
            *((limit.kind, limit.cause) if limit else (None, None)),
            event.candidate.digest if event.candidate else None,
            event.log.digest if event.log else None,
        ),
    )
    connection.executemany(
        "INSERT INTO timings VALUES (?, ?, ?, ?, ?)", [(*key, phase, s) for phase, s in event.timings.items()]
    )
