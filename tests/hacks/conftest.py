"""Attacks are judged for real: each candidate in a sandbox of its own, on the best runtime that this host has."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.limits import MIB, LimitKind, Limits
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.sandbox.host import Host
from proofbox.verify.function import FunctionVerifier

PROMPT = 'def double(x):\n    """Twice x."""\n'
TEST = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate("ab") == "abab"
    assert candidate([1]) == [1, 1]
    for number in range(5):
        assert candidate(number) == 2 * number
"""
LIMITS = Limits(memory=96 * MIB, processes=24, output=4 * MIB)

Judge = Callable[..., Awaitable[Verdict]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Attacks do not depend on the event loop."""
    return "asyncio"


@pytest.fixture
def isolated(host: Host) -> None:
    """For attacks that would hit this very host where nothing isolates."""
    if host.level == "none":
        pytest.skip("nothing isolates on this host; `proofbox doctor` says what is missing")


@pytest.fixture
def enforces(host: Host) -> Callable[[LimitKind], None]:
    """Skips a test whose limit nothing enforces here."""

    def check(kind: LimitKind) -> None:
        if kind not in host.probe.enforces:
            pytest.skip(f"nothing on this host enforces the limit {kind}")

    return check


@pytest.fixture
def judge(host: Host, verifier: FunctionVerifier) -> Judge:
    """Judges a body of ``double(x)`` with ``before``, more code of the module. Prompt and tests can be others."""

    async def judge(
        body: str,
        *,
        before: str = "",
        prompt: str = PROMPT,
        test: str = TEST,
        name: str = "double",
        timeout: float = 1.0,
    ) -> Verdict:
        enforced = host.probe.enforces | {"output"}
        limits = Limits(**{kind: getattr(LIMITS, kind) for kind in LIMITS.asked() if kind in enforced})
        tests = FunctionTests(prompt=prompt, entry_point=name, test=test, timeout=timeout)
        task = Task(id=f"hack/{name}", instruction=prompt, judge=tests, limits=limits)
        completion = textwrap.indent(textwrap.dedent(body), "    ") + "\n" + textwrap.dedent(before)
        return await verifier.judge(task, Candidate(completion=completion))

    return judge
