"""A verifier on the best runtime that this host has, and judging by what a candidate's function does."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.verify.function import FunctionVerifier

Judge = Callable[..., Awaitable[Verdict]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What runs inside the sandboxes does not depend on the event loop."""
    return "asyncio"


@pytest.fixture
def judge(verifier: FunctionVerifier) -> Judge:
    """Judges a whole program that defines ``f`` by the lines of a ``check(candidate)``."""

    async def judge(program: str, check: str, *, prompt: str = "", timeout: float = 3.0) -> Verdict:
        test = "def check(candidate):\n" + textwrap.indent(textwrap.dedent(check), "    ")
        tests = FunctionTests(prompt=prompt, entry_point="f", test=test, timeout=timeout)
        task = Task(id=f"verify/{abs(hash((program, check)))}", instruction="", judge=tests)
        return await verifier.judge(task, Candidate(completion=textwrap.dedent(program)))

    return judge
