"""One candidate's calls: bytes between its sandbox and its grader, a clock, and the grader's verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import anyio

from proofbox.errors import ProofboxError, VerifierFailed
from proofbox.model.blame import taken
from proofbox.model.evidence import Evidence
from proofbox.verify.frames import BadFrame, Splitter, frame
from proofbox.verify.inside.plain import Malformed, decode

START: Final = 60.0
"""Seconds for the start of an interpreter, before any code of the candidate runs. More is the host's failure."""
PATIENCE: Final = 120.0
"""Seconds that the grader may take beyond the candidate's own time. Its CPU time is limited by its kernel."""

TURN: Final = 0.05
"""Seconds of each single call that do not count: the way there and back through a busy host must not fail a candidate.

Tests with a hundred calls would else wait a hundred times for a processor at the candidate's expense.
"""

GIVEN_BACK: Final = 3.0
"""Times the limit, that a clock gives back at most of what the host took. Beyond that the host is too busy to judge."""

Word = Literal["passed", "failed", "gone", "again", "broken", "died"]
WORDS: Final[frozenset[str]] = frozenset({"passed", "failed", "gone", "again", "broken", "died"})


class Connection(Protocol):
    """A stream of bytes to one process in a sandbox.

    ``receive`` gives b"" at the end, ``send`` to one that has ended does nothing; both raise ``SandboxLost``.
    """

    async def send(self, data: bytes) -> object: ...

    async def receive(self) -> bytes: ...

    async def aclose(self) -> None: ...


class Watch(Protocol):
    """Looks at the candidate's processes from outside while its clock runs."""

    def look(self) -> None: ...

    def stop(self) -> None: ...

    def evidence(self, elapsed: float, *, allowed: float, served: bool) -> Evidence: ...


Watching = Callable[[float, Callable[[], bool], Callable[[], None]], Watch]
"""Starts a watch for so many seconds that count while the second argument says so; the third is called at each look."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Why no more answers come. ``text`` is the candidate's own claim where ``why`` is ``broken``."""

    why: Literal["time", "closed", "garbage", "broken", "never started"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The grader's word and reason, and what the host saw. Seconds: until the interpreter was up, and of the calls."""

    word: Word
    reason: str
    gone: Gone | None
    start: float
    calls: float
    used: float
    """Of that, what counts against the time limit: while the candidate had a call to answer."""
    seen: Evidence | None = None
    """What its processes did meanwhile, where its time ran out."""


class Clock:
    """Runs only while the candidate is on turn; when its time is over, ``scope`` is cancelled."""

    def __init__(self, limit: float) -> None:
        self.scope = anyio.CancelScope()
        self.limit = limit
        self.given = 0.0
        """Seconds that passed and do not count, since the host took them from the candidate."""
        self._passed = 0.0
        self._since: float | None = None

    def give(self, seconds: float) -> None:
        """So much was taken from the candidate since the beginning; it gets it back, up to ``GIVEN_BACK``.

        Not any more once its time is over: what counted is what was decided by.
        """
        if self.scope.cancel_called:
            return
        self.given = min(seconds, GIVEN_BACK * self.limit)
        self._set()

    def run(self, on: bool, free: float = 0.0) -> None:
        """Starts it, with so many seconds that do not count, or stops it. Safe to repeat."""
        now = anyio.current_time()
        if on and self._since is None:
            self._since = now + free
        elif not on and self._since is not None:
            self._passed += max(0.0, now - self._since)
            self._since = None
        self._set()

    def _set(self) -> None:
        since = self._since
        self.scope.deadline = math.inf if since is None else since + self.limit + self.given - self._passed

    @property
    def running(self) -> bool:
        """Time passes now."""
        return self._since is not None and anyio.current_time() >= self._since

    @property
    def passed(self) -> float:
        """Seconds for which it ran."""
        running = 0.0 if self._since is None else max(0.0, anyio.current_time() - self._since)
        return self._passed + running

    @property
    def used(self) -> float:
        """Of these, what counts."""
        return max(0.0, self.passed - self.given)


class Exchange:
    """Serves one candidate from the start of its interpreter until the verdict. Use once."""

    def __init__(
        self, candidate: Connection, grader: Connection, *, planned: int, timeout: float, watching: Watching | None
    ) -> None:
        self._candidate = candidate
        self._grader = grader
        self._waiting = planned
        self._up = False
        self._clock = Clock(timeout)
        self._watching = watching
        self._watch: Watch | None = None
        self._gone: Gone | None = None
        self._calling = anyio.CancelScope()
        self._splitter = Splitter()
        self._rest = b""
        self._began = self._started = anyio.current_time()

    async def run(self) -> Found:
        """The verdict. Raises ``SandboxLost`` (the candidate's) or ``VerifierFailed`` (whatever it was)."""
        verdict: tuple[Word, str] | None = None
        failure: ProofboxError | None = None
        lost: list[ProofboxError] = []
        limit = START + self._clock.limit * (1 + GIVEN_BACK) + PATIENCE
        try:
            with anyio.move_on_after(limit):
                async with anyio.create_task_group() as group:
                    group.start_soon(self._from_candidate, group.cancel_scope, lost)
                    try:
                        verdict = await self._from_grader()
                    except ProofboxError as error:
                        failure = error
                    group.cancel_scope.cancel()
        finally:
            if self._watch is not None:
                self._watch.stop()
        if lost:
            raise lost[0]
        if failure is not None:
            raise VerifierFailed(f"the grader was lost while it judged: {failure}") from failure
        if verdict is None:
            raise VerifierFailed(f"the grader gave no verdict within {limit:.0f} s")
        now = anyio.current_time()
        seen = self._seen() if self._gone == Gone("time") else None
        return Found(*verdict, self._gone, self._started - self._began, now - self._started, self._clock.used, seen)

    def _seen(self) -> Evidence | None:
        if self._watch is None:
            return None
        return self._watch.evidence(self._clock.passed, allowed=self._clock.limit, served=True)

    def _give_back(self) -> None:
        """What the host takes from a candidate does not count against its time."""
        seen = self._seen()
        if seen is not None and self._clock.running:
            self._clock.give(taken(seen))

    async def _from_candidate(self, group: anyio.CancelScope, lost: list[ProofboxError]) -> None:
        """Passes answers on until there is no more to expect; then the grader is told so, once."""
        try:
            gone = await self._start()
            if gone is None:
                gone = Gone("time")
                with self._clock.scope:
                    gone = await self._answers()
                if self._watch is not None and gone.why == "time":
                    self._watch.look()
            self._gone = gone
            self._calling.cancel()
        except ProofboxError as error:
            lost.append(error)
            group.cancel()
            return
        self._clock.run(False)
        try:
            await self._grader.send(frame(b"G"))
        except ProofboxError:
            return  # the reader of the same connection reports it

    async def _start(self) -> Gone | None:
        """Waits for the harness's word that the interpreter is up."""
        # The hello is exactly five bytes, and it is read alone: nothing of the candidate has run before it.
        hello = frame(b"H")
        got = b""
        with anyio.move_on_after(START):
            while len(got) < len(hello):
                data = await self._candidate.receive()
                if not data:
                    return Gone("never started", "it ended before the candidate's code was loaded")
                got += data
            if not got.startswith(hello):
                return Gone("never started", f"its first bytes were {got[:20]!r}")
            self._up = True
            self._started = anyio.current_time()
            if self._watching is not None:
                self._watch = self._watching(self._clock.limit, lambda: self._clock.running, self._give_back)
            self._clock.run(self._waiting > 0)
            self._rest = got[len(hello) :]
            return None
        return Gone("never started", f"it was not up after {START:.0f} s")

    async def _answers(self) -> Gone:
        data = self._rest
        while True:
            try:
                frames = self._splitter.feed(data)
            except BadFrame as error:
                return Gone("garbage", str(error))
            gone = self._count(frames)
            answers = b"".join(part for part in frames if part[4:5] == b"A")
            if answers:
                await self._grader.send(answers)
            if gone is not None:
                return gone
            data = await self._candidate.receive()
            if not data:
                return Gone("closed")

    def _count(self, frames: list[bytes]) -> Gone | None:
        """Checks frames against the calls that are open. Frames after the first wrong one are cut from the list."""
        for place, part in enumerate(frames):
            kind = part[4:5]
            if kind == b"A" and self._waiting:
                self._waiting -= 1
                continue
            del frames[place:]
            if kind == b"B":
                return Gone("broken", part[5:1000].decode("utf-8", "replace"))
            return Gone("garbage", "an answer without a call" if kind == b"A" else f"a frame of kind {kind!r}")
        self._clock.run(self._waiting > 0)
        return None

    async def _from_grader(self) -> tuple[Word, str]:
        splitter = Splitter()
        while True:
            data = await self._grader.receive()
            if not data:
                raise VerifierFailed("it closed its connection without a verdict")
            try:
                frames = splitter.feed(data)
            except BadFrame as error:
                raise VerifierFailed(f"it sent {error}") from None
            for part in frames:
                if part[4:5] == b"V":
                    return _verdict(part[5:])
                if part[4:5] != b"L":
                    raise VerifierFailed(f"it sent a frame of kind {part[4:5]!r}")
                await self._ask(part)

    async def _ask(self, call: bytes) -> None:
        if self._gone is not None:
            return
        self._waiting += 1
        self._clock.run(self._up, TURN)
        # A candidate that does not read must not keep the grader's verdict from being read.
        with anyio.CancelScope() as self._calling:
            try:
                await self._candidate.send(call)
            except ProofboxError:
                return  # the reader of the same connection reports it


def _verdict(payload: bytes) -> tuple[Word, str]:
    try:
        word, reason = decode(payload)
    except (Malformed, TypeError, ValueError) as error:
        raise VerifierFailed(f"its verdict cannot be read: {error}") from None
    if word not in WORDS or type(reason) is not str:
        raise VerifierFailed(f"its verdict cannot be read: {word!r}")
    return word, reason
