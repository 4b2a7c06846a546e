"""Run directories and the index: found, refused, rebuilt."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from proofbox.errors import InvalidInput, StoreFailed
from proofbox.model.ids import TrialId
from proofbox.model.run import HostFacts, Plan, RunConfig, RunRecord
from proofbox.model.trace import AttemptEnded, Payload, TrialEnded
from proofbox.model.verdict import Verdict
from proofbox.store.blobs import put_blob
from proofbox.store.index import open_index
from proofbox.store.log import LogFile
from proofbox.store.runs import RunDir, Store


def record(name: str = "20260101-000000-aaaaaa") -> RunRecord:
    return RunRecord(
        id=name,
        at=1.0,
        config=RunConfig(tasks="humaneval", agent="nop"),
        plan=Plan(trials={"T/0": 1}),
        task_set="sha256:1",
        host=HostFacts(runtime="native", level="container"),
    )


def book(run: RunDir, index: int) -> None:
    trial = TrialId("T/0", index)
    end = AttemptEnded(
        trial=trial, attempt=1, at=1.0, ending="passed", verdict=Verdict(ending="passed"), timings={"verify": 0.5}
    )
    log = LogFile(run.log)
    log.append([end, TrialEnded(trial=trial, attempt=1, at=1.0, ending="passed", reward=1.0)], durable=True)
    log.close()


def test_a_run_is_found_by_name_by_path_and_as_the_latest(tmp_path: Path) -> None:
    """Its record comes back equal; names are listed oldest first; a directory without a record is no run."""
    store = Store(tmp_path)
    made = store.create(record())
    newer = store.create(record("20260102-000000-bbbbbb"))
    (tmp_path / "20270101-000000-half00").mkdir()
    assert store.names() == [made.id, newer.id]
    assert store.open(made.id).record() == record()
    assert store.open(str(made.path)).record() == record()
    assert store.open("latest").id == newer.id


def test_the_place_for_runs_comes_from_the_caller_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument wins over the variable, the variable over the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROOFBOX_RUNS", raising=False)
    assert Store().root == tmp_path / "proofbox-runs"
    monkeypatch.setenv("PROOFBOX_RUNS", str(tmp_path / "elsewhere"))
    assert Store().root == tmp_path / "elsewhere"
    assert Store(tmp_path / "here").root == tmp_path / "here"


@pytest.mark.parametrize("name", ["", "nothing-there", "..", "a b", "-x", "UPPER", "x" * 64, "nul\0"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    """No name leads out of the store or to a run that is not there."""
    with pytest.raises(InvalidInput):
        Store(tmp_path).open(name)
    with pytest.raises(InvalidInput):
        Store(tmp_path).open("latest")


def test_a_run_is_never_made_over_another_one(tmp_path: Path) -> None:
    """The same name again is an error, and the first run's record stays."""
    store = Store(tmp_path)
    run = store.create(record())
    with pytest.raises(StoreFailed, match="File exists"):
        store.create(msgspec.structs.replace(record(), at=2.0))
    assert run.record().at == 1.0


def test_a_record_of_a_newer_format_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """The message names the file, and says to upgrade or that it is damaged."""
    run = Store(tmp_path).create(record())
    path = run.path / "run.json"
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({"format": 2, "all": "new"}))
    with pytest.raises(StoreFailed, match=r"run\.json is of format 2.*upgrade"):
        run.record()
    path.write_text(json.dumps({**data, "plan": 7}))
    with pytest.raises(StoreFailed, match=r"run\.json is damaged"):
        run.record()


def test_the_index_follows_the_log_and_can_be_deleted(tmp_path: Path) -> None:
    """It answers from the log, is made again when the log has grown, and when it is lost or broken."""
    run = Store(tmp_path).create(record())
    book(run, 0)
    count = "SELECT count(*) FROM trials WHERE ending = 'passed'"
    with closing(open_index(run)) as index:
        assert index.execute(count).fetchone() == (1,)
        assert index.execute("SELECT phase, seconds FROM timings").fetchall() == [("verify", 0.5)]
    book(run, 1)
    with closing(open_index(run)) as index:
        assert index.execute(count).fetchone() == (2,)
    (run.path / "index.sqlite").write_bytes(b"not a database")
    with closing(open_index(run)) as index:
        assert index.execute(count).fetchone() == (2,)
    assert not list(run.path.glob(".index-*"))


def test_a_payload_is_read_from_the_event_or_from_its_blob(tmp_path: Path) -> None:
    """Small ones stand inline, large ones under their digest; both give the bytes back."""
    run = Store(tmp_path).create(record())
    small, large = b"s" * 100, b"l" * 100_000
    put_blob(run.blobs, large)
    assert run.payload(Payload.of(small)) == small
    assert run.payload(Payload.of(large)) == large
    with pytest.raises(StoreFailed, match="cannot be read"):
        run.payload(Payload.of(b"m" * 100_000))
