"""What is checked about a candidate and a verdict before they count. Agents and verifiers may be anybody's."""

from __future__ import annotations

import msgspec

from proofbox.errors import AgentFailed, SandboxLost, VerifierFailed
from proofbox.model.blame import MEANING, masked
from proofbox.model.outcome import HitLimit
from proofbox.model.task import Candidate, Task
from proofbox.model.trace import Phase, recordable
from proofbox.model.verdict import Verdict


def handed_in(candidate: Candidate | None) -> Candidate | None:
    """The candidate. Raises ``AgentFailed`` for what is none."""
    if candidate is not None and not isinstance(candidate, Candidate):
        raise AgentFailed(f"the agent returned {type(candidate).__name__}, neither a Candidate nor None")
    return candidate


def own_limit(error: Exception, phase: Phase) -> Verdict | None:
    """The verdict where the agent's own sandbox was ended for what the kernel counted in it, or for its age.

    None for all else.
    In phase ``verify`` it may have been a sandbox of the verifier's, which says what it means.
    """
    limit = error.limit if phase == "agent" and isinstance(error, SandboxLost) else None
    if not isinstance(limit, HitLimit) or (limit.cause != "task" and limit.kind != "wall"):
        return None
    return Verdict(ending="limit", reason=str(error), limit=limit)


def trusted(verdict: Verdict, task: Task) -> Verdict:
    """The verdict, its texts made recordable, and masked where its limit must not teach.

    Raises ``VerifierFailed`` for one that makes no sense, and ``SandboxLost`` for a limit that fired because the host
    did not let the program run: that says nothing about the program.
    """
    if not isinstance(verdict, Verdict):
        raise VerifierFailed(f"the verifier returned {type(verdict).__name__}, not a Verdict")
    if (verdict.ending == "limit") != (verdict.limit is not None):
        raise VerifierFailed(f"a verdict {verdict.ending!r} with limit {verdict.limit!r}: one without the other")
    limit = verdict.limit
    if limit is not None and not MEANING[limit.cause].counts:
        said = f"limit {limit.kind} of {limit.limit:g} was reached after {limit.elapsed:.2f} s"
        raise SandboxLost(f"{said}, but the host did not let the program run: this says nothing of it", "host", limit)
    mask = masked(limit, hung_counts=task.hung_counts)
    clean = msgspec.structs.replace(verdict, reason=recordable(verdict.reason), masked=mask)
    try:
        msgspec.json.decode(msgspec.json.encode(clean), type=Verdict)  # NaN, for instance, does not survive
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError) as error:
        raise VerifierFailed(f"a verdict that cannot be recorded: {error}") from error
    return clean
