"""What to do, and how it is judged."""

from __future__ import annotations

import msgspec

from proofbox.errors import BrokenTask
from proofbox.model.limits import Limits, Walls
from proofbox.model.spec import Network


class FunctionTests(msgspec.Struct, frozen=True, tag="function", kw_only=True):
    """Judged by calling one function: ``test`` defines ``check(candidate)``, which raises if the function is wrong.

    ``prompt`` is the start of the module that the candidate completes; the tests may use what it defines.
    ``timeout`` is the wall time in seconds of all calls together, the start of the interpreter not counted.
    """

    prompt: str
    entry_point: str
    test: str
    timeout: float = 3.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``limits`` are those of the sandbox that holds the agent's work; silence means the defaults."""

    id: str
    instruction: str
    judge: FunctionTests
    template: str = "host"
    limits: Limits = Limits()
    walls: Walls = Walls()
    """Silence means what the run says."""
    network: Network = "none"
    reference: str | None = None
    """A solution known to be right, in the form that an agent would hand in; never shown to an agent."""
    hung_counts: bool = False
    """A time limit that was reached without computing (cause ``hung``) is a reward of 0; else it has none.

    True where nothing but the candidate's own code can block, as in a function that is called and must return.
    """

    def __post_init__(self) -> None:
        """Deadlines nest: what is around is longer than what is inside."""
        walls, inside = self.walls, self.judge.timeout
        for kind in ("verify_wall", "trial_wall"):
            around = getattr(walls, kind)
            if around is not None and around <= inside:
                raise BrokenTask(f"task {self.id}: {kind} of {around:g} s is not longer than its calls' {inside:g} s")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent leaves behind. For a function task: the text that completes the prompt."""

    completion: str
