"""What all groups share: interleaved timing, summary figures, the table."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one contender. ``ratio`` is ours divided by this one's: below 1 we are faster or smaller."""

    group: str
    what: str
    who: str
    value: float
    unit: str
    ratio: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """For ``--json``."""
        return asdict(self)


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that ``call`` takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def interleave(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Runs every contender once a round, so that a noisy minute hits all alike. Milliseconds, in order."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            took[name].append(timed(call))
    return took


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return statistics.median(values) if values else math.nan


def with_ratios(rows: Sequence[Row], ours: str = "proofbox", inverse: bool = False) -> list[Row]:
    """The rows of one figure, each with the ratio of our value to its (``inverse``: rates, where more is better)."""
    mine = next((row.value for row in rows if row.who == ours), None)
    if mine is None:
        return list(rows)
    result = []
    for row in rows:
        ratio = None if row.who == ours or not row.value else (row.value / mine if inverse else mine / row.value)
        result.append(Row(row.group, row.what, row.who, row.value, row.unit, ratio, row.note))
    return result


def table(rows: Sequence[Row]) -> str:
    """Plain text, one line a figure."""
    lines = [f"{'group':10} {'what':44} {'who':18} {'value':>10} {'unit':8} {'ours/its':>9}  note"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:9.2f}"
        lines.append(f"{row.group:10} {row.what:44} {row.who:18} {row.value:10.2f} {row.unit:8} {ratio:>9}  {row.note}")
    return "\n".join(lines)
