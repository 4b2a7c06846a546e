"""Where runs lie: a directory each, ``run.json``, ``events.jsonl``, ``blobs/``.

``run.json`` is written once, before anything else; a directory without it is no run. The log is the truth; whatever
else there is can be made again from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import msgspec

from proofbox.errors import InvalidInput, StoreFailed
from proofbox.kit.durable import sync_directory
from proofbox.model.ids import check_run_id
from proofbox.model.run import FORMAT, RunRecord
from proofbox.model.trace import Event, Payload
from proofbox.store.blobs import get_blob
from proofbox.store.log import LogReader
from proofbox.store.writer import Writer, open_writer

ENVIRONMENT: Final = "PROOFBOX_RUNS"
DEFAULT: Final = "proofbox-runs"


class _Format(msgspec.Struct):
    format: int


class RunDir:
    """One run on disk. Making the object reads nothing; the methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "events.jsonl"
        self.blobs = path / "blobs"

    @property
    def id(self) -> str:
        return self.path.name

    def record(self) -> RunRecord:
        """What was asked for. Raises ``StoreFailed`` where it cannot be read or is of a newer format."""
        path = self.path / "run.json"
        try:
            data = path.read_bytes()
            version = msgspec.json.decode(data, type=_Format).format
            if version > FORMAT:
                raise StoreFailed(f"{path} is of format {version}; this Proofbox reads up to {FORMAT}: upgrade it")
            return msgspec.json.decode(data, type=RunRecord)
        except OSError as error:
            raise StoreFailed(f"{path} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise StoreFailed(f"{path} is damaged: {error}") from error

    def events(self) -> LogReader:
        """Reads the log, also while it is written."""
        return LogReader(self.log)

    def payload(self, payload: Payload) -> bytes:
        """The bytes of a payload. Raises ``StoreFailed`` where its blob is missing or damaged."""
        return payload.inline if payload.inline is not None else get_blob(self.blobs, payload.digest)

    def open_writer(self, see: Callable[[Event], object]) -> AbstractAsyncContextManager[Writer]:
        """See ``store.writer.open_writer``."""
        return open_writer(self.log, self.blobs, see)


class Store:
    """All runs below one directory: ``root``, else ``$PROOFBOX_RUNS``, else ``./proofbox-runs``. Methods block."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root or os.environ.get(ENVIRONMENT) or DEFAULT).absolute()

    def create(self, record: RunRecord) -> RunDir:
        """A new run, durably. Raises ``StoreFailed``; a crash may leave a directory without ``run.json``."""
        path = self.root / check_run_id(record.id)
        run = RunDir(path)
        temporary = path / ".run.json.new"
        try:
            path.mkdir(parents=True)
            run.log.touch()
            with open(temporary, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path / "run.json")
            sync_directory(path)
            sync_directory(self.root)
        except OSError as error:
            raise StoreFailed(f"a run could not be made at {path}: {error.strerror}") from error
        return run

    def open(self, run: str) -> RunDir:
        """A run by its name, by a path to it, or the newest one for ``latest``. ``InvalidInput`` if there is none."""
        if run == "latest":
            names = self.names()
            if not names:
                raise InvalidInput(f"there is no run in {self.root}")
            return RunDir(self.root / names[-1])
        path = Path(run).absolute() if os.sep in run else self.root / check_run_id(run)
        if not (path / "run.json").is_file():
            raise InvalidInput(f"no run {run!r} in {self.root if os.sep not in run else path} (no run.json there)")
        return RunDir(path)

    def names(self) -> list[str]:
        """The names of all runs, oldest first."""
        found = [(path.parent.name, path.stat().st_mtime_ns) for path in self.root.glob("*/run.json")]
        return [name for name, _ in sorted(found, key=lambda run: (run[0][:15], run[1]))]  # several within one second
