"""What the log of a run says about where it stands: what is left to do, and with which attempt numbers."""

from __future__ import annotations

from proofbox.model.ids import TrialId
from proofbox.model.run import Plan
from proofbox.model.trace import JUDGED, AttemptStarted, Event, IsolationFound, TrialEnded
from proofbox.model.verdict import ENDINGS, Ending


class History:
    """Folds the events of a log, in order."""

    def __init__(self) -> None:
        self._attempts: dict[TrialId, int] = {}
        self._judged: dict[TrialId, Ending] = {}
        self.isolations: set[str] = set()
        """Digests of those that are in the log."""

    def see(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event, AttemptStarted):
            self._attempts[event.trial] = max(event.attempt, self._attempts.get(event.trial, 0))
        elif isinstance(event, IsolationFound):
            self.isolations.add(event.digest)
        elif isinstance(event, TrialEnded) and event.ending in JUDGED:
            self._judged.setdefault(event.trial, event.ending)

    def left(self, plan: Plan) -> list[tuple[TrialId, int]]:
        """Requested minus judged, in fair order, each with the number of its next attempt."""
        return [(trial, self._attempts.get(trial, 0) + 1) for trial in plan.fair() if trial not in self._judged]

    def counts(self) -> dict[Ending, int]:
        """The judged trials by ending, all endings present."""
        counts: dict[Ending, int] = dict.fromkeys(ENDINGS, 0)
        for ending in self._judged.values():
            counts[ending] += 1
        return counts
