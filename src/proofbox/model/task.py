"""What to do, and how it is judged."""

from __future__ import annotations

from typing import Final

import msgspec

from proofbox.errors import BrokenTask
from proofbox.model.limits import DEFAULTS, Limits, Walls
from proofbox.model.spec import Network

TEARDOWN: Final = 60.0
JUDGING: Final = 600.0
"""Seconds beyond what is limited, for what the infrastructure does meanwhile: starts, hand-over, our own lateness."""
GIVEN_BACK: Final = 4.0
"""Times its limit that a candidate's calls may last, where the host took the rest."""


class FunctionTests(msgspec.Struct, frozen=True, tag="function", kw_only=True):
    """Judged by calling one function: ``test`` defines ``check(candidate)``, which raises if the function is wrong.

    ``prompt`` is the start of the module that the candidate completes; the tests may use what it defines.
    ``timeout`` is the wall time in seconds of all calls together, the start of the interpreter not counted.
    """

    prompt: str
    entry_point: str
    test: str
    timeout: float = 3.0


class Workspace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent that acts in turns finds in its sandbox, which is of the task's template and has its limits.

    files   texts that are written before anything runs there, by path
    setup   shell commands that run next, in order; one that fails ends the attempt: that is not the agent's doing
    answer  the file that is the candidate, in the form that any other agent would hand in
    cwd     where commands and paths start; None is the template's own directory
    """

    answer: str
    files: dict[str, str] = {}
    setup: tuple[str, ...] = ()
    cwd: str | None = None


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
    workspace: Workspace | None = None
    """None: no agent can act in a sandbox for it."""
    reference: str | None = None
    """A solution known to be right, in the form that an agent would hand in; never shown to an agent."""
    hung_counts: bool = False
    """A time limit that was reached without computing (cause ``hung``) is a reward of 0; else it has none.

    True where nothing but the candidate's own code can block, as in a function that is called and must return.
    """

    def __post_init__(self) -> None:
        """Deadlines nest: what is around is longer than what is inside."""
        walls, calls, life = self.walls, self.judge.timeout, self.limits.wall
        phases = (walls.setup_wall or 0.0) + (walls.agent_wall or 0.0)
        for outer, around, inner, inside in (
            ("verify_wall", walls.verify_wall, "its calls'", calls),
            ("trial_wall", walls.trial_wall, "its calls'", calls),
            ("the sandboxes' wall", life, "its calls'", calls),
            ("the sandboxes' wall", life, "setup_wall and agent_wall together:", phases),
            ("agent_wall", walls.agent_wall, "turn_wall of", walls.turn_wall),
            ("turn_wall", walls.turn_wall, "command_wall of", self.limits.command_wall),
        ):
            if around is not None and inside is not None and around <= inside:
                raise BrokenTask(f"task {self.id}: {outer} of {around:g} s is not longer than {inner} {inside:g} s")

    def lifetime(self) -> float:
        """Seconds that its sandboxes may live where nobody says otherwise: more than all that happens in one of them.

        The agent's has setup, agent and its end in it; a candidate's the calls, with what a busy host is given back.
        """
        agent = (self.walls.setup_wall or 0.0) + (self.walls.agent_wall or 0.0)
        return max(DEFAULTS.wall or 0.0, agent + TEARDOWN, GIVEN_BACK * self.judge.timeout + JUDGING)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent leaves behind. For a function task: the text that completes the prompt."""

    completion: str
