"""How each attempt's sandboxes were kept apart is in the log and the report, and a run does not go on with less."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.conftest import open_host

from proofbox.agent.builtin import ReferenceAgent
from proofbox.agent.contract import Agent, TurnAgent
from proofbox.errors import InvalidInput
from proofbox.model.isolation import Isolation
from proofbox.model.run import HostFacts, RunConfig
from proofbox.model.task import Task
from proofbox.model.trace import AttemptEnded, IsolationFound
from proofbox.model.turn import Decision, Turn
from proofbox.sandbox.host import Host
from proofbox.store.render import render
from proofbox.store.report import Report, report_json
from proofbox.store.runs import Store
from proofbox.tasks import humaneval
from proofbox.trial.facts import host_facts
from proofbox.trial.rollout import Workplace
from proofbox.trial.run import run_tasks
from proofbox.verify.function import FunctionVerifier

pytestmark = [pytest.mark.anyio, pytest.mark.container]


class Writes:
    """An agent that writes the reference solution in its sandbox."""

    name = "writes"

    async def decide(self, task: Task, index: int, turns: Sequence[Turn]) -> Decision | None:
        text = f"cat > completion.py <<'END'\n{task.reference}\nEND"
        return None if turns else Decision(commands=(text,))


@pytest.fixture
async def native() -> AsyncIterator[Host]:
    async with open_host("native") as found:
        yield found


@pytest.fixture
async def crun() -> AsyncIterator[Host]:
    async with open_host("crun") as found:
        yield found


@pytest.fixture
def two() -> list[Task]:
    """Two problems."""
    return humaneval.load()[:2]


async def score(
    judging: Host, tasks: list[Task], agent: Agent | TurnAgent, root: Path, *, acting: Host | None = None
) -> Report:
    """One run of them, one trial at a time."""
    facts = await host_facts(judging, tasks)
    config = RunConfig(tasks="humaneval", agent=agent.name, jobs=1)
    async with FunctionVerifier(judging) as verifier:
        place = None if acting is None else Workplace(acting)
        return await run_tasks(config, tasks, agent, verifier, facts, Store(root), place=place)


async def test_every_attempt_names_its_sandboxes(native: Host, two: list[Task], tmp_path: Path) -> None:
    """Candidate's and grader's, found from outside; what is alike is stored once, each one's own ids beside it."""
    report = await score(native, two, ReferenceAgent(), tmp_path)
    events = list(Store(tmp_path).open(report.run).events())
    (found,) = [event for event in events if isinstance(event, IsolationFound)]
    assert (found.isolation.runtime, found.isolation.level, found.isolation.ids) == ("native", "container", ())
    assert found.digest == found.isolation.digest()
    assert "mnt" not in found.isolation.shared
    first, second = (event.sandboxes for event in events if isinstance(event, AttemptEnded))
    assert {each.phase for each in (*first, *second)} == {"verify"}
    assert {each.isolation for each in (*first, *second)} == {found.digest}
    graders = {each.id for each in first} & {each.id for each in second}
    assert (len(first), len(second), len(graders)) == (2, 2, 1)
    assert all(sum(count for _, _, count in each.ids) >= 1 for each in (*first, *second))
    assert events.index(found) < min(n for n, event in enumerate(events) if isinstance(event, AttemptEnded))


async def test_two_runtimes_are_told_apart(native: Host, crun: Host, two: list[Task], tmp_path: Path) -> None:
    """An agent acts at one and is judged at the other: each sandbox says where it was, and the report has a note."""
    report = await score(crun, two[:1], Writes(), tmp_path, acting=native)
    assert report.endings["passed"] == 1
    by_digest = {line.digest: line for line in report.isolations}
    runtimes = [(seen.phase, by_digest[seen.isolation].isolation.runtime) for seen in report.trials[0].sandboxes]
    assert sorted(runtimes) == [("agent", "native"), ("verify", "crun"), ("verify", "crun")]
    told = json.loads(report_json(report))
    assert [line["attempts"] for line in told["isolations"]] == [1, 1]
    assert {seen["isolation"] for seen in told["trials"][0]["sandboxes"]} == set(by_digest)
    text = render(report)
    assert "isolation (native, level container) of 1 attempts: own namespaces" in text
    assert "note: sandboxes were kept apart in 2 different ways" in text


FULL = Isolation(
    runtime="native",
    level="user-kernel",
    own=("mnt", "net", "pid"),
    unseen=("user",),
    ids=((0, 500000, 65536),),
    seccomp=2,
    no_new_privs=True,
    capabilities=(0, 1),
)

WEAKER = {
    "its level is 'container', not 'user-kernel'": {"level": "container"},
    "namespaces of its own no more: mnt, net": {"own": ("pid",), "shared": ("mnt", "net")},
    "no filter of system calls any more": {"seccomp": 0},
    "programs can gain privileges": {"no_new_privs": False},
    "more capabilities: 21": {"capabilities": (0, 1, 21)},
    "one id inside, the user's own, instead of several": {"ids": ((0, 1000, 1),)},
}


@pytest.mark.parametrize(("what", "change"), WEAKER.items(), ids=WEAKER)
def test_what_is_weaker_is_named(what: str, change: dict[str, object]) -> None:
    """One way at a time; and the other way round it is none."""
    less = msgspec.structs.replace(FULL, **change)
    assert less.weaker_than(FULL) == (what,)
    assert FULL.weaker_than(less) == ()


@pytest.mark.parametrize(
    "change", [{}, {"ids": ((0, 900000, 65536),)}, {"own": ("mnt",), "unseen": ("net", "pid")}, {"capabilities": None}]
)
def test_what_is_alike_or_cannot_be_seen_is_not_weaker(change: dict[str, object]) -> None:
    """Another range of ids, and a host that may look at less."""
    assert msgspec.structs.replace(FULL, **change).weaker_than(FULL) == ()


async def test_a_run_does_not_go_on_with_less(native: Host, two: list[Task], tmp_path: Path) -> None:
    """A resume on a host that keeps its sandboxes apart less is refused by name, whatever was asked for."""
    facts = await host_facts(native, two)
    assert facts.isolation is not None

    async def run(host: HostFacts, resume: str | None = None) -> Report:
        config = RunConfig(tasks="humaneval", agent="reference", jobs=1)
        async with FunctionVerifier(native) as verifier:
            return await run_tasks(config, two, ReferenceAgent(), verifier, host, Store(tmp_path), resume=resume)

    first = await run(facts)
    unfiltered = msgspec.structs.replace(facts.isolation, seccomp=0)
    with pytest.raises(InvalidInput, match="kept apart less: no filter of system calls any more"):
        await run(msgspec.structs.replace(facts, isolation=unfiltered), first.run)
    with pytest.raises(InvalidInput, match="the level of isolation was 'container', now 'none'"):
        await run(msgspec.structs.replace(facts, level="none"), first.run)
    assert (await run(facts, first.run)).attempts == 2
