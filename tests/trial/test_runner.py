"""Many trials: order, bounds, attempts, endings, the stop rule, cancellation, resume."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from proofbox.errors import AgentFailed, BrokenTask, InvalidInput, StoreFailed
from proofbox.model.ids import TrialId
from proofbox.model.run import BrokenLine, Plan, RunConfig, StopRule
from proofbox.model.task import Task
from proofbox.model.trace import AttemptEnded, AttemptStarted, Failure, RunClosed, TrialEnded
from proofbox.model.verdict import Verdict
from proofbox.trial.attempts import Retry
from proofbox.trial.groups import groups
from proofbox.trial.queue import Queue
from proofbox.trial.runner import Progress

Lab = Any
Tasks = Callable[..., list[Task]]


async def test_every_task_gets_its_first_trial_before_any_gets_its_second(lab: Lab, tasks: Tasks) -> None:
    """Round robin over the tasks, so that an early stop leaves all tasks equally far."""
    await lab.run(tasks("passed", "failed", "passed"), n=2, jobs=1)
    assert lab.order == [(f"T/{i}", index) for index in range(2) for i in range(3)]


async def test_no_more_trials_than_jobs_run_at_a_time(lab: Lab, tasks: Tasks) -> None:
    """The bound holds, and is used."""
    lab.pause = 0.005
    report = await lab.run(tasks(*["passed"] * 20), jobs=3)
    assert report.endings["passed"] == 20
    assert lab.peak == 3


async def test_all_five_endings_add_up_to_what_was_asked_for(lab: Lab, tasks: Tasks) -> None:
    """Passed, failed, limit, lost and nothing-to-judge, and a broken samples line: the denominator is all of them."""
    chosen = tasks("passed", "failed", "limit", "lost", "none")
    plan = Plan(trials={task.id: 2 for task in chosen}, broken=(BrokenLine(7, "no completion"),))
    report = await lab.run(chosen, plan=plan)
    assert report.endings == {"passed": 2, "failed": 2, "limit": 2, "infrastructure": 2, "not_run": 3}
    assert report.asked == sum(report.endings.values()) == 11
    rewards = {trial.task: trial.reward for trial in report.trials}
    assert rewards == {"T/0": 1.0, "T/1": 0.0, "T/2": 0.0, "T/3": None, "T/4": None}


async def test_a_lost_sandbox_gets_a_new_attempt_and_the_first_one_stays_recorded(
    lab: Lab, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial passes at its second attempt; the log has both, with their numbers; the report tells both rates."""
    _no_pauses(monkeypatch)
    report = await lab.run(tasks("lost-once", "passed"), attempts=3)
    assert report.endings["passed"] == 2
    assert (report.first_attempt["infrastructure"], report.first_attempt["passed"]) == (1, 1)
    ended = [e for e in lab.latest().events() if isinstance(e, AttemptEnded) and e.trial.task == "T/0"]
    assert [(e.attempt, e.ending) for e in ended] == [(1, "infrastructure"), (2, "passed")]


async def test_only_infrastructure_is_tried_again_and_not_for_ever(
    lab: Lab, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong, limit and nothing-to-judge have one attempt; one that is always lost has as many as the knob says."""
    _no_pauses(monkeypatch)
    report = await lab.run(tasks("failed", "limit", "none", "lost"), attempts=3)
    assert {trial.task: trial.attempts for trial in report.trials} == {"T/0": 1, "T/1": 1, "T/2": 1, "T/3": 3}
    assert report.failures[0].attempts == 3


def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofbox.trial.run.Retry", lambda attempts: Retry(attempts, first=0.0))


def test_pauses_grow_have_chance_in_them_and_an_upper_bound() -> None:
    """Doubling from the first, half to whole of it by chance, never above the longest; none where it is pointless."""
    lost = Failure(code="sandbox_lost", blame="host", again="new sandbox", phase="verify")
    refused = Failure(code="refused", blame="host", again="elsewhere", phase="verify")
    low = Retry(attempts=99, random=lambda: 0.0)
    high = Retry(attempts=99, random=lambda: 1.0)
    assert [high.pause(lost, n) for n in (1, 2, 3, 50)] == [0.5, 1.0, 2.0, 30.0]
    assert [low.pause(lost, n) for n in (1, 2, 3, 50)] == [0.25, 0.5, 1.0, 15.0]
    assert Retry(attempts=2).pause(lost, 2) is None
    assert high.pause(refused, 1) is None


async def test_a_trial_that_pauses_holds_no_slot() -> None:
    """With one worker, the next trial goes on while the first one waits for its second attempt."""
    queue = Queue([(TrialId("a", 0), 1), (TrialId("b", 0), 1)])
    first = await queue.next()
    assert first is not None
    queue.done(first, 0.02)
    second = await queue.next()
    assert second is not None
    assert second.trial.task == "b"
    queue.done(second, None)
    again = await queue.next()
    assert again is not None
    assert (again.trial, again.number, again.tried) == (first.trial, 2, 2)
    queue.done(again, None)
    assert await queue.next() is None


async def test_a_run_whose_first_trials_are_all_lost_stops_and_says_why(lab: Lab, tasks: Tasks) -> None:
    """It does not burn through the rest; what was not run is counted as such, and the report quotes the failure."""
    report = await lab.run(tasks(*["lost"] * 40), jobs=2, stop=StopRule(first=5))
    assert report.state == "stopped"
    assert "first 5 trials all were infrastructure failures" in report.why
    assert "went away" in report.why
    assert 5 <= report.endings["infrastructure"] <= 6
    assert report.asked == 40 == report.endings["infrastructure"] + report.endings["not_run"]


async def test_a_run_with_too_large_a_share_lost_stops(lab: Lab, tasks: Tasks) -> None:
    """Every third trial passes, the others are lost: above the share, after the number it takes to tell."""
    report = await lab.run(tasks(*["passed", "lost", "lost"] * 20), jobs=1, stop=StopRule(first=3, share=0.5, after=20))
    assert report.state == "stopped"
    assert sum(report.endings[e] for e in ("passed", "infrastructure")) == 20
    assert "more than 50%" in report.why


async def test_wrong_answers_never_stop_a_run(lab: Lab, tasks: Tasks) -> None:
    """Failing is what is measured; only infrastructure counts against the rule."""
    report = await lab.run(tasks(*["failed", "limit", "none"] * 10), stop=StopRule(first=1, after=1, share=0.0))
    assert report.state == "complete"


async def test_cancellation_leaves_nothing_books_nothing_half_done_and_is_resumed(lab: Lab, tasks: Tasks) -> None:
    """Cancelled with trials under way: none is alive, none of them is booked; a resume runs those and only those."""
    chosen = tasks("passed", "failed", "hang", "hang")
    with anyio.CancelScope() as scope:

        def cancel_when_two_are_booked(progress: Progress) -> None:
            if progress.counts["passed"] + progress.counts["failed"] == 2:
                scope.cancel()

        await lab.run(chosen, jobs=4, on_event=cancel_when_two_are_booked)
    assert lab.alive == 0
    run = lab.latest()
    events = list(run.events())
    assert {e.trial.task for e in events if isinstance(e, TrialEnded)} == {"T/0", "T/1"}
    assert {e.trial.task for e in events if isinstance(e, AttemptStarted)} == {"T/0", "T/1", "T/2", "T/3"}
    assert isinstance(events[-1], RunClosed)
    assert events[-1].closing == "cancelled"
    before = lab.acted.copy()

    async def passes(task: Task, index: int) -> Any:
        return await lab_judge(task, index)

    lab_judge = lab._judge
    lab._judge = lambda task, index: lab_judge(tasks("passed")[0], index)
    report = await lab.run(chosen, jobs=4, resume=run.id)
    assert report.run == run.id
    assert lab.acted - before == Counter({("T/2", 0): 1, ("T/3", 0): 1})
    assert report.endings == {"passed": 3, "failed": 1, "limit": 0, "infrastructure": 0, "not_run": 0}
    assert {t.task: t.attempts for t in report.trials} == {"T/0": 1, "T/1": 1, "T/2": 2, "T/3": 2}
    assert report.interrupted == 2


async def test_resume_tries_lost_and_unhanded_trials_again_with_numbers_going_on(lab: Lab, tasks: Tasks) -> None:
    """What was requested minus what was judged; attempt numbers are never used twice."""
    chosen = tasks("passed", "lost", "none")
    first = await lab.run(chosen)
    second = await lab.run(chosen, resume=first.run)
    assert {t.task: t.attempts for t in second.trials} == {"T/0": 1, "T/1": 2, "T/2": 2}
    assert second.endings == first.endings
    numbers = [(e.trial.task, e.attempt) for e in lab.latest().events() if isinstance(e, AttemptStarted)]
    assert len(numbers) == len(set(numbers)) == 5


async def test_a_resume_with_something_else_is_refused_and_says_what_differs(lab: Lab, tasks: Tasks) -> None:
    """Another n, other tasks, another agent: the trials would not belong together. The run is left as it was."""
    first = await lab.run(tasks("passed"))
    data = lab.latest().log.read_bytes()
    with pytest.raises(InvalidInput, match="n was 1, now 2"):
        await lab.run(tasks("passed"), n=2, resume=first.run)
    with pytest.raises(InvalidInput, match="digest of the task set was"):
        await lab.run(tasks("failed"), resume=first.run)
    lab.name = "other"
    with pytest.raises(InvalidInput, match="the agent was 'lab', now 'other'"):
        await lab.run(tasks("passed"), resume=first.run)
    assert lab.latest().log.read_bytes() == data


async def test_two_processes_cannot_write_one_run(lab: Lab, tasks: Tasks) -> None:
    """A resume of a run that still goes on is refused by its lock; the first one is undisturbed."""
    refused: list[str] = []
    chosen = tasks("passed")
    run: list[str] = []

    async def second() -> None:
        with pytest.raises(StoreFailed, match="another process is writing"):
            await lab.run(chosen, resume=lab.latest().id)
        refused.append("yes")

    judge = lab._judge

    async def slow(task: Task, index: int) -> Any:
        if not run:
            run.append("once")
            await second()
        return await judge(task, index)

    lab._judge = slow
    report = await lab.run(chosen)
    assert refused == ["yes"]
    assert report.endings["passed"] == 1


async def test_an_end_is_told_when_it_is_on_disk(lab: Lab, tasks: Tasks) -> None:
    """Progress names each trial's start and end, with counts; at that moment the log has it."""
    told: list[Progress] = []

    def on_event(progress: Progress) -> None:
        told.append(progress)
        if isinstance(progress.event, TrialEnded):
            assert progress.event in list(lab.latest().events())

    await lab.run(tasks("passed", "failed"), on_event=on_event)
    assert Counter(type(p.event).__name__ for p in told) == {"AttemptStarted": 2, "AttemptEnded": 2, "TrialEnded": 2}
    assert sum(told[-1].counts.values()) == told[-1].asked == 2


async def test_what_the_callback_raises_ends_the_run_and_leaves_nothing(lab: Lab, tasks: Tasks) -> None:
    """A broken progress display does not go unnoticed; attempts under way are ended."""

    def broken(progress: Progress) -> None:
        raise LookupError("display")

    with anyio.fail_after(10), pytest.raises(ExceptionGroup) as caught:
        await lab.run(tasks("hang", "hang"), on_event=broken)
    assert caught.group_contains(LookupError)
    assert lab.alive == 0
    last = list(lab.latest().events())[-1]
    assert isinstance(last, RunClosed)
    assert (last.closing, last.why) == ("failed", "LookupError: display")


async def test_every_trial_starts_from_the_recorded_template(lab: Lab, tasks: Tasks) -> None:
    """The verifier is given the digest that the run's record names, not a name that may change its meaning."""
    seen: set[str] = set()
    judge = lab._judge

    async def watching(task: Task, index: int) -> Any:
        seen.add(task.template)
        return await judge(task, index)

    lab._judge = watching
    await lab.run(tasks("passed", "failed"))
    assert seen == set(lab.latest().record().host.templates.values()) == {"sha256:0"}


async def test_a_group_has_one_reward_or_none_for_each_trial(lab: Lab, tasks: Tasks) -> None:
    """A lost trial is a hole in its group, not a zero that moves the baseline."""
    chosen = tasks("passed", "lost")
    await lab.run(chosen, n=3)
    found = list(groups(Plan.uniform(chosen, 3), lab.latest().events()))
    assert [(g.task, g.rewards) for g in found] == [("T/0", (1.0, 1.0, 1.0)), ("T/1", (None, None, None))]
    assert found[1].judged == ()


async def test_bad_requests_are_refused_before_anything_is_made(lab: Lab, tasks: Tasks) -> None:
    """Unknown tasks in the plan, two tasks of one id, zero of anything: no run directory appears."""
    with pytest.raises(BrokenTask, match="nowhere"):
        await lab.run(tasks("passed"), plan=Plan(trials={"nowhere": 1}))
    with pytest.raises(InvalidInput, match="two tasks have the id"):
        await lab.run(tasks("passed") + tasks("failed"))
    with pytest.raises(InvalidInput, match="jobs is 0"):
        RunConfig(tasks="x", agent="y", jobs=0)
    assert not lab.store.root.exists()
    assert AgentFailed.code == "agent_failed"


async def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(lab: Lab, tasks: Tasks) -> None:
    """StoreFailed at once, also for trials that hang; every end that was told is on disk; a resume does the others."""
    chosen = tasks(*["passed"] * 30)
    lab.pause = 0.01  # so that not all of them end in one batch
    told: list[TrialId] = []

    def on_event(progress: Progress) -> None:
        if isinstance(progress.event, TrialEnded):
            told.append(progress.event.trial)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
    try:
        with anyio.fail_after(10), pytest.raises(StoreFailed, match="make room, then resume"):
            await lab.run(chosen + _renamed(tasks("hang")), jobs=2, on_event=on_event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert lab.alive == 0
    booked = [event.trial for event in lab.latest().events() if isinstance(event, TrialEnded)]
    assert 0 < len(told) <= len(booked) < 30
    assert told == booked[: len(told)]
    acted = lab.acted.copy()
    lab._judge = lambda task, index: _passed()
    report = await lab.run(chosen + _renamed(tasks("hang")), resume="latest")
    assert report.endings["passed"] == 31
    assert not {(trial.task, trial.index) for trial in booked} & set(lab.acted - acted)


def _renamed(some: list[Task]) -> list[Task]:
    return [msgspec.structs.replace(task, id=f"other/{task.id}") for task in some]


async def _passed() -> Verdict:
    return Verdict(ending="passed")


PROGRAM = """
    import sys
    from pathlib import Path
    import anyio
    from proofbox.model.run import HostFacts, RunConfig
    from proofbox.model.task import Candidate, FunctionTests, Task
    from proofbox.model.trace import TrialEnded
    from proofbox.model.verdict import Verdict
    from proofbox.store.runs import Store
    from proofbox.trial.run import run_tasks

    class Slow:
        name = "slow"
        async def act(self, task, index):
            print("act", task.id, flush=True)
            return Candidate(completion="x")
        async def judge(self, task, candidate):
            await anyio.sleep(0.01)
            return Verdict(ending="passed")

    def tell(progress):
        if isinstance(progress.event, TrialEnded):
            print("end", progress.event.trial.task, flush=True)

    tests = FunctionTests(prompt="", entry_point="f", test="")
    tasks = [Task(id=f"T/{i}", instruction="", judge=tests) for i in range(60)]
    resume = sys.argv[2] if len(sys.argv) > 2 else None
    config = RunConfig(tasks="lab", agent="slow", jobs=4)
    host = HostFacts(runtime="fake", level="container")
    report = anyio.run(lambda: run_tasks(
        config, tasks, Slow(), Slow(), host, Store(sys.argv[1]), resume=resume, on_event=tell))
    print("report", report.endings["passed"], report.attempts, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_goes_on_and_repeats_nothing_that_was_told_as_ended(lab: Lab, number: signal.Signals) -> None:
    """kill -9 and Ctrl-C in the middle: every end that was told is booked, and the resume acts only on the others."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(lab.store.root)]
    told: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("end"):
                told.append(line.split()[1])
                if len(told) == 20:
                    os.kill(process.pid, number)
    assert 20 <= len(told) < 60
    run = lab.latest().id
    result = subprocess.run([*command, run], capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split() for line in result.stdout.splitlines()]
    acted = [words[1] for words in lines if words[0] == "act"]
    assert not set(acted) & set(told)
    assert len(acted) == len(set(acted))
    [report] = [words for words in lines if words[0] == "report"]
    assert report[1] == "60"
    assert {e.attempt for e in lab.latest().events() if isinstance(e, AttemptStarted)} == {1, 2}
