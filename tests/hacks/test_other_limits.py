"""Attack, or accident: use up CPU time, the disk or its files, or only look as if a limit had fired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.errors import SandboxLost
from proofbox.model.limits import MIB, Limits
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Verdict
from proofbox.sandbox.host import Host
from proofbox.verify.function import FunctionVerifier

TESTS = FunctionTests(
    prompt="def double(x):\n",
    entry_point="double",
    test="def check(candidate):\n    assert candidate(2) == 4\n",
    timeout=60.0,
)
SPIN = "    import os\n    for _ in range(3):\n        os.fork()\n    while True:\n        pass\n"
FILL = "    with open('/tmp/fill', 'wb') as file:\n        while True:\n            file.write(bytes(1 << 20))\n"
MANY = "    number = 0\n    while True:\n        open(f'/tmp/{number}', 'w').close()\n        number += 1\n"


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("kind", "limits", "body"),
    [
        ("cpu_time", Limits(cpu_time=2.0), SPIN),
        ("disk", Limits(disk=8 * MIB), FILL),
        ("inodes", Limits(inodes=500), MANY),
    ],
    ids=["cpu_time", "disk", "inodes"],
)
async def test_the_limit_that_the_kernel_counted_is_the_ending(
    kind: str, limits: Limits, body: str, host: Host, verifier: FunctionVerifier, enforces: Callable[[str], None]
) -> None:
    """A limit with its value, which is the candidate's own doing, and not a failure of anybody else."""
    enforces(kind)
    if kind != "cpu_time" and "memory" not in host.probe.enforces:
        pytest.skip("without rights nobody looks into a sandbox from outside: a full disk is the program's own error")
    task = Task(id="hack/limit", instruction="", judge=TESTS, limits=limits)
    try:
        verdict = await verifier.judge(task, Candidate(completion=body))
    except SandboxLost as lost:
        pytest.fail(f"the host's doing: {lost}")
    assert verdict.ending == "limit", verdict
    assert verdict.limit is not None
    assert (verdict.limit.kind, verdict.limit.cause) == (kind, "task")
    assert verdict.limit.limit == getattr(limits, kind)


@pytest.mark.usefixtures("isolated")
async def test_a_grandchild_that_is_killed_for_memory_is_in_the_verdict_of_a_right_answer(
    judge: Callable[..., Awaitable[Verdict]], enforces: Callable[[str], None]
) -> None:
    """It passes, and the kernel's count stands beside it."""
    enforces("memory")
    eat = "hoard = [bytearray(1 << 20) for _ in range(4096)]"
    body = f"import os\nif x == 2:\n    if os.fork() == 0:\n        {eat}\n    os.wait()\nreturn x + x"
    verdict = await judge(body, timeout=30.0)
    assert verdict.ending == "passed"
    assert verdict.usage is not None
    assert (verdict.usage.oom_kills or 0) >= 1


@pytest.mark.parametrize("code", [124, 137, 152])
async def test_looking_like_a_limit_is_none(code: int, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """An exit code and a text are the candidate's own words: it failed."""
    verdict = await judge(f"import os\nprint('Killed: timed out', flush=True)\nos._exit({code})")
    assert (verdict.ending, verdict.limit) == ("failed", None)
