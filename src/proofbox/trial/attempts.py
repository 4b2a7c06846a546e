"""What is tried again: infrastructure failures only, after a pause. A result that was booked never changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from proofbox.model.trace import Failure


@dataclass(frozen=True, slots=True)
class Retry:
    """``attempts`` tries of a trial in one process. Pauses in seconds: ``first``, doubled each time, up to ``longest``.

    The pauses bridge a short outage; half of each is chance, so that trials that failed together do not come back
    together. A trial holds no slot while it pauses.
    """

    attempts: int = 3
    first: float = 0.5
    longest: float = 30.0
    random: Callable[[], float] = random.random

    def pause(self, failure: Failure, tried: int) -> float | None:
        """Seconds until the next attempt after ``tried`` ones in this process; None if there is to be none."""
        if tried >= self.attempts or failure.again in ("no", "elsewhere"):
            return None
        longest = min(self.longest, self.first * 2.0 ** min(tried - 1, 32))
        return longest * (0.5 + 0.5 * self.random())
