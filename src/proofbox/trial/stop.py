"""When a run is stopped early: its infrastructure is broken, and going on would only burn time and hide it."""

from __future__ import annotations

from proofbox.model.run import StopRule
from proofbox.model.verdict import Ending


class Alarm:
    """Counts the trials that ended in this process against a ``StopRule``."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self._ended = 0
        self._broken = 0

    def count(self, ending: Ending, message: str) -> str | None:
        """Counts one trial. Returns why the run has to stop, if it has to; ``message`` is the failure to quote."""
        if ending == "not_run":
            return None
        self._ended += 1
        if ending != "infrastructure":
            return None
        self._broken += 1
        rule = self._rule
        if self._broken == self._ended == rule.first:
            return (
                f"the first {self._ended} trials all were infrastructure failures (stop.first); the last one: {message}"
            )
        if self._ended >= rule.after and self._broken > rule.share * self._ended:
            return (
                f"{self._broken} of {self._ended} trials were infrastructure failures, more than {rule.share:.0%} "
                f"(stop.share); the last one: {message}"
            )
        return None
