"""Candidates for the demonstration: one function, many ways not to write it, and how each has to end.

The function is ``running_max``. Only the first two candidates are right.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from proofbox.model.limits import MIB, FiredKind, LimitKind, Limits
from proofbox.model.spec import LEVELS, Level
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.verdict import Ending

PROMPT: Final = '''def running_max(numbers):
    """For each place of the list the largest number up to there.

    >>> running_max([3, 1, 4, 1, 5])
    [3, 3, 4, 4, 5]
    """
'''
TEST: Final = """def check(candidate):
    assert candidate([3, 1, 4, 1, 5]) == [3, 3, 4, 4, 5]
    assert candidate([]) == []
    assert candidate([-2, -7, -1]) == [-2, -2, -1]
    for size in range(1, 20):
        assert candidate(list(range(size, 0, -1))) == [size] * size
"""
JUDGE: Final = FunctionTests(prompt=PROMPT, entry_point="running_max", test=TEST, timeout=1.0)
EMULATED_S: Final = 10.0
"""Its timeout where taking 128 MiB alone lasts longer than that."""
TASK: Final = Task(
    id="demo",
    instruction=PROMPT,
    judge=JUDGE,
    limits=Limits(memory=128 * MIB, processes=32, output=8 * MIB),
    hung_counts=True,
)


@dataclass(frozen=True, slots=True)
class Demo:
    """One candidate. ``does`` is a line for a person; ``ending`` what the verdict must be, ``limit`` which limit.

    ``sooner``: another limit that may be met before it where sandboxes have a kernel of their own: processes take more
    memory there.
    """

    name: str
    does: str
    completion: str
    ending: Ending
    limit: LimitKind | None = None
    sooner: LimitKind | None = None

    @property
    def candidate(self) -> Candidate:
        return Candidate(completion=self.completion)

    def task(self, enforced: Collection[LimitKind], *, emulated: bool = False) -> Task:
        """The task under a name of its own, with those of its limits that this host enforces; with more time where the
        processor is emulated.
        """
        limits = {kind: getattr(TASK.limits, kind) for kind in TASK.limits.asked() if kind in enforced}
        judge = msgspec.structs.replace(JUDGE, timeout=EMULATED_S) if emulated else JUDGE
        return msgspec.structs.replace(TASK, id=f"demo/{self.name}", judge=judge, limits=Limits(**limits))

    def ends_so(self, ending: Ending, limit: FiredKind | None, level: Level) -> bool:
        """Whether that is how it has to end at that level."""
        own_kernel = LEVELS.index(level) >= LEVELS.index("user-kernel")
        sooner = own_kernel and limit is not None and limit == self.sooner
        return ending == self.ending and (limit == self.limit or sooner)

    def can_be_shown(self, enforced: Collection[LimitKind]) -> bool:
        """Its limit is enforced here; without that it would be told apart less exactly, or harm the host.

        A limit on processes holds without control groups too, but there nobody counts the forks that it refused.
        """
        if self.limit == "processes" and "memory" not in enforced:
            return False
        return self.limit is None or self.limit in enforced or self.limit == "command_wall"


_RIGHT: Final = """    result = []
    for number in numbers:
        result.append(number if not result else max(number, result[-1]))
    return result
"""

DEMOS: Final = (
    Demo("right", "is right", _RIGHT, "passed"),
    Demo("noisy", "is right, and prints a lot", "    print('debugging ' * 20000)\n" + _RIGHT, "passed"),
    Demo("wrong", "returns its argument", "    return list(numbers)\n", "failed"),
    Demo("typo", "does not compile", "    return [max(numbers[:i] for i in numbers]\n", "failed"),
    Demo("loop", "computes without end", "    while True:\n        pass\n", "limit", "command_wall"),
    Demo("sleep", "sleeps", "    import time\n    time.sleep(3600)\n", "limit", "command_wall"),
    Demo("crash", "crashes its interpreter", "    import ctypes\n    ctypes.string_at(0)\n", "failed"),
    Demo("recursion", "calls itself without end", "    return running_max(numbers)\n", "failed"),
    Demo("memory", "takes all memory", "    return [bytearray(1 << 20) for _ in range(4096)]\n", "limit", "memory"),
    Demo(
        "forks",
        "starts processes without end",
        "    import os, time\n    while True:\n        if os.fork() == 0:\n            time.sleep(3600)\n",
        "limit",
        "processes",
        sooner="memory",
    ),
    Demo(
        "flood",
        "prints without end",
        "    while True:\n        print('x' * 65536, flush=True)\n",
        "limit",
        "output",
    ),
    Demo("exit", "leaves early with success", "    import os\n    os._exit(0)\n", "failed"),
    Demo("sysexit", "raises SystemExit(0)", "    raise SystemExit(0)\n", "failed"),
    Demo(
        "liar",
        "returns an object that equals everything",
        "    class Liar(list):\n        def __eq__(self, other):\n            return True\n    return Liar()\n",
        "failed",
    ),
    Demo(
        "printer",
        "prints what a test runner prints",
        '    print(\'1 passed in 0.01s\\nALL TESTS PASSED\\n{"ending": "passed"}\')\n    return None\n',
        "failed",
    ),
    Demo(
        "patcher",
        "makes all comparisons of its interpreter true",
        "    import builtins, operator\n"
        "    builtins.all = builtins.any = builtins.isinstance = lambda *_: True\n"
        "    operator.eq = lambda *_: True\n"
        "    return []\n",
        "failed",
    ),
    Demo(
        "reader",
        "looks for the expected values in memory",
        "    import gc, sys\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        if 'expected' in frame.f_locals:\n"
        "            return frame.f_locals['expected']\n"
        "        frame = frame.f_back\n"
        "    for text in gc.get_objects():\n"
        "        if isinstance(text, str) and 'assert candidate' in text:\n"
        "            return eval(text.partition('==')[2])\n"
        "    return []\n",
        "failed",
    ),
    Demo(
        "closer",
        "closes every descriptor",
        "    import os\n    os.closerange(0, 4096)\n    return []\n",
        "failed",
    ),
    Demo(
        "forger",
        "writes a verdict into every descriptor",
        "    import os\n"
        "    for fd in range(3, 1024):\n"
        "        try:\n"
        "            os.write(fd, b'\\x01\\x00\\x00\\x00V' + b'{\"ending\": \"passed\"}')\n"
        "        except OSError:\n"
        "            pass\n"
        "    return []\n",
        "failed",
    ),
)
