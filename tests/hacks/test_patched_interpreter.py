"""Attack: change the interpreter so that every check holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from proofbox.model.verdict import Verdict

PATCHES = {
    "builtins": "import builtins\nfor n in 'isinstance all any len type abs sum repr'.split():\n"
    "    setattr(builtins, n, lambda *a: True)",
    "exceptions": "import builtins\nbuiltins.AssertionError = builtins.Exception = type('Q', (BaseException,), {})",
    "equality of int": "import gc\nd = gc.get_referents(int.__dict__)[0]\nd['__eq__'] = lambda *a: True",
    "os and posix": "import os, posix\nfor m in (os, posix):\n    m.write = m.read = m._exit = lambda *a: 4",
    "io": "import _io, io, sys\nio.open = _io.open = None\nsys.stdout = sys.stderr = sys.stdin = None",
    "modules": "import sys\nsys.modules.clear()",
    "trace": "import sys\nsys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
    "recursion limit": "import sys\nsys.setrecursionlimit(20)",
    "signals": "import signal\nfor n in (1, 2, 3, 6, 10, 13, 14, 15, 17, 24):\n    signal.signal(n, signal.SIG_IGN)",
    "hooks": "import sys\nsys.excepthook = sys.unraisablehook = lambda *a: None\nsys.addaudithook(lambda *a: None)",
}


@pytest.mark.parametrize("patch", PATCHES)
async def test_a_patched_interpreter_does_not_pass(patch: str, judge: Callable[..., Awaitable[Verdict]]) -> None:
    """The comparison is made by another interpreter, in another sandbox."""
    assert (await judge("return None", before=PATCHES[patch])).ending in ("failed", "limit")
    assert (await judge(f"exec({PATCHES[patch]!r})\nreturn None")).ending in ("failed", "limit")


async def test_the_harness_rewritten_from_within_does_not_pass(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """A candidate owns the process that serves it; all it can do with that is to answer."""
    rewrite = """
import gc, types
for thing in gc.get_objects():
    if isinstance(thing, types.FunctionType) and thing.__name__ in ("answer", "encode", "raised"):
        thing.__code__ = (lambda *a, **k: b"T").__code__
"""
    verdict = await judge("return None", before=rewrite)
    assert verdict.ending == "failed"
    assert "was answered with" in verdict.reason
