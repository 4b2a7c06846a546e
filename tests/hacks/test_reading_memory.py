"""Attack: find the expected values in the memory of the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from proofbox.model.verdict import Verdict

SECRET = 90817263544536271809
TEST = f"""
EXPECTED = {SECRET}
def check(candidate):
    assert candidate(1) == EXPECTED
    assert candidate(2) == {SECRET + 1}
"""
SEARCH = """
import gc, sys
def frames():
    frame = sys._getframe()
    while frame:
        yield frame.f_locals
        yield frame.f_globals
        frame = frame.f_back
def memory():
    for line in open('/proc/self/maps'):
        span, mode, *_ , name = (line.split() + [''])[:7]
        if 'r' in mode and not name.startswith(('/', '[v')):
            low, high = (int(part, 16) for part in span.split('-'))
            with open('/proc/self/mem', 'rb', 0) as file:
                try:
                    file.seek(low)
                    yield file.read(high - low)
                except OSError:
                    pass
found = []
for scope in frames():
    found += [v for v in list(scope.values()) if type(v) is int and v > 10 ** 18]
    if 'EXPECTED' in scope:
        found.append(scope['EXPECTED'])
for thing in gc.get_objects():
    if isinstance(thing, dict) and 'EXPECTED' in thing:
        found.append(thing['EXPECTED'])
head, tail = b'9081726354', b'4536271809'  # apart: the search must not find itself
for part in memory():
    at = part.find(head)
    while at >= 0:
        if part[at + 10:at + 20] == tail:
            found.append(int(head + tail))
        at = part.find(head, at + 1)
"""


async def test_expected_values_are_not_in_the_candidates_process(judge: Callable[..., Awaitable[Verdict]]) -> None:
    """Neither frames, nor the collector's list, nor raw memory has them: what it found it would return, and pass."""
    verdict = await judge(
        "exec(SEARCH, globals())\nreturn (found or [0])[-1] + x - 1", before=f"SEARCH = {SEARCH!r}", test=TEST
    )
    assert verdict.ending == "failed"
    assert "call 1 returned 0" in verdict.reason
