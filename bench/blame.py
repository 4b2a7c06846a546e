"""Whose doing a time limit was: randomised experiments, and the confusion matrix of what was said of them."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import anyio

import proofbox
from bench.measure import Row
from proofbox.errors import Refused
from proofbox.model.blame import shares_of
from proofbox.model.outcome import Cause
from proofbox.testing import blame
from proofbox.testing.blame import Experiment

CAUSES: tuple[Cause, ...] = ("task", "hung", "host", "unknown")
AT_A_TIME = 5
"""Experiments of one phase of load."""
TRIES = 5


async def measure(quick: bool) -> list[Row]:
    """Rows of the matrix: said of what was true."""
    choose = random.Random(os.environ.get("PROOFBOX_SEED"))
    rounds = 1 if quick else 11
    hosts = [await proofbox.Host.local(name) for name in os.environ.get("PROOFBOX_BLAME", "native").split(",")]
    said: Counter[tuple[Cause, Cause]] = Counter()
    wrong: list[str] = []
    unfair: list[str] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        data = Path(folder)
        blame.make_files(data)
        data.chmod(0o755)
        reason = blame.no_slow_disk(data)
        if nothing := blame.no_first_in_line():
            raise Refused("group blame", (nothing,))
        todo: list[tuple[Experiment, float]] = []
        for _ in range(rounds):
            seconds = choose.uniform(0.6, 2.0)
            todo += [(e, seconds) for e in blame.experiments(choose, seconds) if not (e.slow_disk and reason)]
        choose.shuffle(todo)
        todo.sort(key=lambda each: each[0].busy_host)
        for at in range(0, len(todo), AT_A_TIME):
            some = todo[at : at + AT_A_TIME]
            busy = [each for each in some if each[0].busy_host]
            for part in (busy, [each for each in some if not each[0].busy_host]):
                with blame.busy_host() if part is busy and busy else nullcontext():
                    for experiment, seconds in part:
                        await _one(choose.choice(hosts), experiment, seconds, data, said, wrong, unfair)
            await anyio.sleep(0.5)
    for line in wrong:
        print(line)
    if unfair:
        print(f"left out, for the host was busy: {Counter(unfair)}")
    return _rows(said, reason)


async def _one(
    host: proofbox.Host,
    experiment: Experiment,
    seconds: float,
    data: Path,
    said: Counter[tuple[Cause, Cause]],
    wrong: list[str],
    unfair: list[str],
) -> None:
    """Runs one and counts it; again, whatever came out, while the host is not what the experiment says."""
    for _ in range(TRIES):
        hit = await blame.run(host, experiment, seconds, data)
        if blame.is_fair(experiment, hit):
            break
        await anyio.sleep(0.5)
    else:
        unfair.append(experiment.name)
        return
    said[experiment.truth, hit.cause] += 1
    if hit.cause != experiment.truth:
        shares = shares_of(hit.evidence) if hit.evidence is not None else None
        wrong.append(f"{experiment.name} ({host.runtime_name}, {seconds:.2f} s): {hit.cause}; {shares}; {hit.evidence}")


def _rows(said: Counter[tuple[Cause, Cause]], reason: str) -> list[Row]:
    print(f"\n{sum(said.values())} experiments {reason}")
    print(f"{'truth':10}" + "".join(f"{'said ' + cause:>14}" for cause in CAUSES))
    for truth in CAUSES[:3]:
        print(f"{truth:10}" + "".join(f"{said[truth, cause]:14}" for cause in CAUSES))
    print()
    rows = []
    for truth in CAUSES[:3]:
        of = sum(said[truth, cause] for cause in CAUSES)
        for cause in CAUSES:
            share = said[truth, cause] / of if of else 0.0
            rows.append(
                Row(
                    "blame",
                    f"{truth}, called {cause}",
                    "proofbox",
                    share,
                    "share",
                    note=f"{said[truth, cause]} of {of}",
                )
            )
    return rows
