"""Agents that act in a sandbox: setup, turns, the answer, and what a limit of each scope ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
import pytest

from proofbox.agent.contract import Agent, TurnAgent
from proofbox.agent.script import ScriptAgent
from proofbox.errors import BrokenTask
from proofbox.model.limits import DEFAULTS, Limits, Walls
from proofbox.model.outcome import Exited, HitLimit
from proofbox.model.run import HostFacts, RunConfig
from proofbox.model.task import Candidate, Task, Workspace
from proofbox.model.trace import TurnEnded
from proofbox.model.turn import Decision, Turn
from proofbox.model.verdict import Verdict
from proofbox.sandbox.host import Host
from proofbox.store.report import Report
from proofbox.store.runs import Store
from proofbox.trial.rollout import ANSWER_MOST, Workplace
from proofbox.trial.run import run_tasks, settled
from proofbox.trial.trial import Attempt, attempt
from proofbox.verify.exchange import GIVEN_BACK, PATIENCE, START

pytestmark = pytest.mark.anyio

FOR_EVER = 3600.0
LONGER = (1.0, 6.0, 30.0)
"""Seconds; a longer one for hosts so busy that nothing had happened before the shorter one."""
WRITE = "printf '    return 1\\n' > answer"


@dataclass
class Plays:
    """Decides as it is told, and remembers what it saw; ``None`` in the list is a decision that never comes."""

    turns: Sequence[Decision | None]
    name: str = "plays"
    seen: list[Turn] = field(default_factory=list)

    async def decide(self, task: Task, index: int, turns: Sequence[Turn]) -> Decision | None:
        self.seen = list(turns)
        if len(turns) == len(self.turns):
            return None
        decision = self.turns[len(turns)]
        if decision is None:
            await anyio.sleep(FOR_EVER)
        return decision


@dataclass
class Reads:
    """A verifier that passes what returns 1."""

    name: str = "reads"
    judged: list[str] = field(default_factory=list)

    async def judge(self, task: Task, candidate: Candidate) -> Verdict:
        self.judged.append(candidate.completion)
        return Verdict(ending="passed" if "return 1" in candidate.completion else "failed")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Sandboxes do not depend on the event loop."""
    return "asyncio"


@pytest.fixture(scope="module")
async def place(anyio_backend: str) -> AsyncIterator[Workplace]:
    """Sandboxes without isolation are enough for what is tested here, and are to be had everywhere."""
    host = await Host.local("process", "none", allow_unisolated=True)
    yield Workplace(host)
    await host.aclose()


@pytest.fixture
def task(tasks: Callable[..., list[Task]]) -> Task:
    return msgspec.structs.replace(tasks("any")[0], workspace=Workspace(answer="answer"))


def says(*commands: str, timeout: float | None = None) -> Decision:
    return Decision(commands=commands, timeout=timeout)


async def play(task: Task, place: Workplace, *turns: Decision | None) -> tuple[Attempt, Plays, list[Turn]]:
    """One attempt, the agent with what it saw, and what was recorded."""
    agent, told = Plays(turns), []

    async def tell(turn: Turn) -> None:
        told.append(turn)

    return await attempt(task, 0, agent, Reads(), place, tell), agent, told


async def test_an_agent_acts_in_turns_and_what_it_leaves_is_judged(task: Task, place: Workplace) -> None:
    """Files and setup come first, each turn sees those before it, the sandbox is the same; four phases are timed."""
    work = Workspace(answer="sub/answer", files={"sub/given": "   return"}, setup=("printf ' 1' > one",))
    ready = msgspec.structs.replace(task, workspace=work)
    turns = says("cat sub/given one", "exit 3"), says(), says("cat sub/given one > sub/answer")
    done, agent, told = await play(ready, place, *turns)
    assert done.candidate == Candidate(completion="   return 1")
    assert done.verdict is not None
    assert done.verdict.ending == "passed"
    assert [turn.number for turn in told] == [1, 2, 3]
    assert agent.seen == told
    assert [(ran.stdout, ran.outcome) for ran in told[0].ran] == [(b"   return 1", Exited(0)), (b"", Exited(3))]
    assert {"sandbox", "setup", "agent", "verify"} <= done.timings.keys()


async def test_a_commands_limit_is_an_observation_and_the_agent_goes_on(task: Task, place: Workplace) -> None:
    """It sees which limit it was, with the cause; the other commands of the turn run, and the trial is judged."""
    turns = says("echo begun; sleep 60", "echo next", timeout=0.5), says(WRITE, "echo later")
    done, agent, _ = await play(task, place, *turns)
    assert done.verdict is not None
    assert done.verdict.ending == "passed"
    limit = agent.seen[0].ran[0].outcome
    assert isinstance(limit, HitLimit)
    assert (limit.kind, limit.limit) == ("command_wall", 0.5)
    assert agent.seen[0].limit is None
    assert len(agent.seen[0].ran) == 2
    assert agent.seen[1].ran[1].stdout == b"later\n"


async def test_a_turns_limit_ends_its_commands_and_the_agent_goes_on(task: Task, place: Workplace) -> None:
    """The one that ran is ended and named for the turn, those after it do not run; the next turn has its own time."""
    for seconds in LONGER:
        timed = msgspec.structs.replace(task, walls=Walls(turn_wall=seconds))
        done, agent, told = await play(timed, place, says("sleep 60", "echo never > answer"), says(WRITE))
        if told[1].limit is None:
            break
    assert done.verdict is not None
    assert done.verdict.ending == "passed"
    limit = told[0].limit
    assert limit is not None
    assert (limit.kind, limit.limit, len(told[0].ran)) == ("turn_wall", seconds, 1)
    assert limit.used is not None
    assert limit.used >= seconds
    assert agent.seen[0].ran[0].outcome == limit


async def test_a_turn_that_never_gets_decided_ends_the_trial(task: Task, place: Workplace) -> None:
    """There is nobody to be told. Nothing says whose doing it was, so there is no reward."""
    timed = msgspec.structs.replace(task, walls=Walls(turn_wall=0.2))
    done, _, _ = await play(timed, place, says(WRITE), None)
    assert done.verdict is not None
    assert done.verdict.limit is not None
    assert (done.verdict.ending, done.verdict.limit.kind, done.verdict.reward) == ("limit", "turn_wall", None)


async def test_the_agents_limit_ends_the_trial_and_the_turn_that_was_cut_is_recorded(
    task: Task, place: Workplace
) -> None:
    """With what had come to its end in it."""
    for seconds in LONGER:
        timed = msgspec.structs.replace(task, walls=Walls(agent_wall=seconds))
        done, _, told = await play(timed, place, says("echo whole", "sleep 60"))
        if told and told[0].ran:
            break
    assert done.verdict is not None
    assert done.verdict.limit is not None
    assert (done.verdict.ending, done.verdict.limit.kind) == ("limit", "agent_wall")
    assert told[0].cut
    assert [ran.stdout for ran in told[0].ran] == [b"whole\n"]


@pytest.mark.parametrize(
    ("setup", "walls", "kind"),
    [("exit 7", Walls(), None), ("sleep 60", Walls(setup_wall=0.2), "setup_wall")],
    ids=["fails", "hangs"],
)
async def test_a_broken_setup_is_never_the_agents_result(
    task: Task, place: Workplace, setup: str, walls: Walls, kind: str | None
) -> None:
    """The agent has not acted: an infrastructure failure of phase setup, which names the task and the command."""
    broken = msgspec.structs.replace(task, workspace=Workspace(answer="a", setup=("true", setup)), walls=walls)
    done, _, told = await play(broken, place, says(WRITE))
    assert (done.verdict, told) == (None, [])
    failure = done.failure
    assert failure is not None
    assert (failure.code, failure.phase, failure.blame) == ("setup_failed", "setup", "task")
    assert "command 2" in failure.message or kind
    assert (failure.limit.kind if failure.limit else None) == kind


async def test_a_sandbox_whose_own_time_is_over_ends_the_trial_as_its_limit(task: Task, place: Workplace) -> None:
    """It is not the host's failure; as with every time limit that nobody looked into, it teaches nothing."""
    judge = msgspec.structs.replace(task.judge, timeout=0.1)
    for seconds in LONGER:
        short = msgspec.structs.replace(task, limits=Limits(wall=seconds), judge=judge)
        done, _, told = await play(short, place, says("sleep 60"))
        if told:
            break
    assert done.verdict is not None, done.failure
    assert done.verdict.limit is not None
    assert (done.verdict.ending, done.verdict.limit.kind, done.verdict.reward) == ("limit", "wall", None)
    assert told[0].cut


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", "left no file"),
        ("mkfifo answer", "not a file"),
        ("mkdir answer", "not a file"),
        ("ln -s /dev/zero answer", "not a file"),
        ("ln -s answer answer", "symbolic links"),
        (f"head -c {ANSWER_MOST + 1} /dev/zero > answer", "more than"),
    ],
)
async def test_what_is_no_answer_is_a_wrong_one(task: Task, place: Workplace, command: str, said: str) -> None:
    """A reward of 0 and no failure of ours; nobody waits for a FIFO, and nothing without an end is read."""
    done, _, _ = await play(task, place, says(command))
    assert done.verdict is not None, done.failure
    assert (done.verdict.ending, done.verdict.reward) == ("failed", 0.0)
    assert said in done.verdict.reason


async def test_an_agent_that_decides_nothing_for_ever_reaches_its_limit(task: Task, place: Workplace) -> None:
    """It holds up nobody else, the clock included."""
    timed = msgspec.structs.replace(task, walls=Walls(agent_wall=0.3))
    done, _, told = await play(timed, place, *[says()] * 10_000_000)
    assert done.verdict is not None
    assert done.verdict.limit is not None
    assert done.verdict.limit.kind == "agent_wall"
    assert told


async def test_what_cannot_be_started_is_an_observation(task: Task, place: Workplace) -> None:
    """A decision that makes no sense is the agent's to see."""
    _, agent, _ = await play(task, place, says("a\0b", WRITE), says("echo x", timeout=-1.0))
    assert [ran.outcome for ran in agent.seen[0].ran] == [None, Exited(0)]
    assert "NUL" in agent.seen[0].ran[0].error
    assert agent.seen[1].ran[0].error


@pytest.mark.parametrize("agent", [Plays([says("true")]), Plays(["sh"])])  # type: ignore[list-item]
async def test_an_agent_that_breaks_is_the_agents_failure(task: Task, place: Workplace, agent: Plays) -> None:
    """One without a place to act in is its caller's; one that decides nonsense is its own."""
    where = None if isinstance(agent.turns[0], Decision) else place
    done = await attempt(task, 0, agent, Reads(), where)
    assert done.failure is not None
    assert done.failure.blame == ("caller" if where is None else "agent")


async def test_every_turn_is_in_the_log_with_its_limits_and_output(
    tmp_path: Path, task: Task, place: Workplace
) -> None:
    """On disk with the bytes that it printed; the report counts what fired in turns, in trials that it did not end."""
    script = tmp_path / "script.jsonl"
    lines = [{"task": "T/*", "turns": [{"commands": ["head -c 9000 /dev/zero; sleep 60"], "timeout": 1.0}, [WRITE]]}]
    script.write_text("\n".join(map(json.dumps, lines)) + "\n")
    agent = ScriptAgent(script)
    report = await _run(tmp_path, task, agent, place)
    assert (report.trials[0].ending, report.trials[0].reward) == ("passed", 1.0)
    assert [(line.kind, line.attempts, line.trials) for line in report.limits] == [("command_wall", 1, 0)]
    run = Store(tmp_path).open("latest")
    turns = [event for event in run.events() if isinstance(event, TurnEnded)]
    assert [(turn.turn, turn.attempt, turn.cut) for turn in turns] == [(1, 1, False), (2, 1, False)]
    output = turns[0].commands[0].stdout
    assert output.size == 9000
    assert run.payload(output) == bytes(9000)
    assert [scope.tasks for scope in run.record().limits] == [("T/0",)]


async def _run(root: Path, task: Task, agent: Agent | TurnAgent, place: Workplace) -> Report:
    config = RunConfig(tasks="t", agent=agent.name)
    facts = HostFacts(runtime="process", level="none", limits=place.host.effective(None))
    return await run_tasks(config, [task], agent, Reads(), facts, Store(root), place=place)


def test_a_sandbox_lives_longer_than_all_that_happens_in_it(task: Task) -> None:
    """Setup, agent and end; the calls with what is given back. Who asks for less than its phases has a broken task."""
    config = RunConfig(tasks="t", agent="a", walls=Walls(setup_wall=1000.0, agent_wall=9000.0))
    assert (settled(task, config).limits.wall or 0) > 10_000
    plain = settled(task, RunConfig(tasks="t", agent="a"))
    assert plain.limits.wall == DEFAULTS.wall
    slow = msgspec.structs.replace(task, judge=msgspec.structs.replace(task.judge, timeout=5000.0))
    needed = START + slow.judge.timeout * (1 + GIVEN_BACK) + 2 * PATIENCE
    assert (settled(slow, RunConfig(tasks="t", agent="a")).limits.wall or 0) > needed
    with pytest.raises(BrokenTask, match="setup_wall and agent_wall"):
        settled(task, msgspec.structs.replace(config, limits=Limits(wall=9999.0)))
    for walls, limits in (
        (Walls(turn_wall=2.0, agent_wall=2.0), Limits()),
        (Walls(turn_wall=2.0), Limits(command_wall=3.0)),
        (Walls(), Limits(wall=task.judge.timeout)),
    ):
        with pytest.raises(BrokenTask, match="not longer"):
            msgspec.structs.replace(task, walls=walls, limits=limits)


@pytest.mark.parametrize("text", ["{", '{"task": "x"}', '{"task": "x", "turns": [{"command": "y"}]}'])
def test_a_script_that_cannot_be_read_names_its_line(tmp_path: Path, text: str) -> None:
    """Before anything has run."""
    path = tmp_path / "script"
    path.write_text(f'{{"task": "*", "turns": []}}\n\n{text}\n')
    with pytest.raises(BrokenTask, match="line 3"):
        ScriptAgent(path)
