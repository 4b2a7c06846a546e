"""The members of a warm pool: how many there are to be, which are made now, and which have to go."""

from __future__ import annotations

import functools
import logging
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

import anyio

from proofbox.errors import ProofboxError, SandboxLost, UncleanStart
from proofbox.kit.clock import untimed
from proofbox.kit.loop import Background, later
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.factory import Factory
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.order import Order
from proofbox.sandbox.pool_stats import Gone, State, Tally

log = logging.getLogger("proofbox.pool")

TICK: Final = 0.5
"""Seconds between looks at what no event tells: members that are too old or have died, names of templates."""
NEED_SECONDS: Final = 10.0
"""Half of the members that nobody needed for so long are let go."""
SETTLE_SECONDS: Final = 0.01
"""How long a refill waits after a claim while others still stand. At once, it would hold up the claimant's first
command, which then took half as long again (p10 of 200 claims on two busy processors: 4.7 to 5.2 ms for 2.7 to 3.4).
"""
LOOK_SECONDS: Final = 5.0
"""How often a member that stands is looked at anew, and how long it may take to answer then. At the claim it would cost
a fifth of a millisecond; a round trip costs half of that.
"""
RETRY_FIRST: Final = 0.1
RETRY_MOST: Final = 30.0
STUCK_FAILURES: Final = 3
STUCK_SECONDS: Final = 10.0
"""A creation that takes longer does not get on."""
STEADY_SECONDS: Final = 1.0
"""A member that has stood so long shows that creation works again."""


@dataclass(slots=True, eq=False)
class Member:
    """One that stands ready, since then; nobody gets it from ``until`` on."""

    life: Life
    box: Sandbox
    since: float
    until: float
    looked: float
    """When it was last seen to be what it was made as."""
    gone: bool = False
    """It was let go, and counted."""


class Members:
    """Sandboxes of one order, its clocks standing, for ``take``. ``wanted`` of them, between ``least`` and ``most``."""

    def __init__(
        self,
        factory: Factory,
        understand: Callable[[], Awaitable[Order]],
        tally: Tally,
        *,
        least: int,
        most: int,
        keep: float,
        at_once: int,
    ) -> None:
        self.least = least
        self.most = most
        self.wanted = least
        self.order: Order | None = None
        self.closed = False
        self.error = ""
        """The latest failure, until all is well again."""
        self.news = anyio.Event()
        """Set when something may have become different, and then another event."""
        self._factory = factory
        self._understand = understand
        self._tally = tally
        self._keep = keep
        self._at_once = at_once
        self._idle: deque[Member] = deque()
        """Oldest first."""
        self._pending: dict[str, tuple[float, Background]] = {}
        """Id -> when it was begun, and what makes it."""
        self._leaving: set[Life] = set()
        self._unneeded = 0
        """The fewest members that stood since ``_needs_since``."""
        self._needs_since = monotonic()
        self._failures = 0
        self._failed_at = -1.0
        self._retry_at = 0.0
        self._watching: Background | None = None
        self._looking: Background | None = None

    @property
    def standing(self) -> int:
        return sum(member.life.state == "live" for member in self._idle)

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def state(self) -> State:
        if self.closed or self.order is None:
            return "closed"
        oldest = min((begun for begun, _ in self._pending.values()), default=None)
        if self._failures >= STUCK_FAILURES or (oldest is not None and monotonic() - oldest > STUCK_SECONDS):
            return "stuck"
        return "ready" if self.standing >= self.wanted else "filling"

    async def open(self) -> None:
        """Begins to fill. Raises what is wrong with the order."""
        self.order = await self._understand()
        self._watching = Background(self._watch, "proofbox pool")

    async def close(self) -> None:
        """Destroys all that nobody has taken. Not to be cancelled."""
        self.closed = True
        self._tell()
        for task in (self._watching, self._looking):
            if task is not None:
                task.cancel()
                await task.wait()
        tasks = [task for _, task in self._pending.values()]
        for task in tasks:
            task.cancel()
        for member in list(self._idle):
            self._let_go(member, "surplus")
        for task in tasks:
            await task.wait()
        self._pending.clear()
        for life in list(self._leaving):
            await life.end()

    def take(self) -> Member | None:
        """The oldest one, which is the taker's from now on. Whether it serves is to be seen."""
        while self._idle:
            member = self._idle.popleft()
            self._unneeded = min(self._unneeded, len(self._idle))
            if monotonic() < member.until:
                return member
            self._let_go(member, "expired")
        return None

    async def give_back(self, member: Member) -> None:
        """One that nobody has had, after ``take``."""
        if self.closed:
            await member.life.end()
        else:
            self._idle.appendleft(member)

    def served(self) -> None:
        """A member has answered and was handed out: creation works."""
        if self._failures:
            log.info("the pool gets on again")
        self._failures, self._retry_at, self.error = 0, 0.0, ""
        if self._idle:
            later(SETTLE_SECONDS, self.fill)
        else:
            self.fill()

    def missed(self) -> None:
        """Somebody found none: one member more would have served that claim."""
        self.wanted = min(self.most, self.wanted + 1)
        self._unneeded = 0
        self.fill()

    def sick(self, member: Member, error: SandboxLost) -> None:
        """It died, is silent, or is not clean any more. Counts as a failure: a host that loses members may lose the
        next ones too. Once for each: a claim and a look may find the same at one time.
        """
        if member.gone:
            return
        self._let_go(member, "unclean" if isinstance(error, UncleanStart) else "unhealthy", error)
        self._failed(error, member.since)

    def turn_to(self, order: Order) -> None:
        """What is wanted has become this: members of another order go."""
        if order != self.order and not self.closed:
            self.order = order
            for member in list(self._idle):
                self._let_go(member, "drained")

    def fill(self) -> None:
        """Begins what is lacking; what is on its way is not lacking. Waits for nothing: nothing can come between."""
        if self.closed or self.order is None:
            return
        now = monotonic()
        # After a failure one at a time, until one has shown that it works: no storm against a host in trouble.
        room = 1 if self._failures else self._at_once
        while now >= self._retry_at and len(self._pending) < room:
            if len(self._idle) + len(self._pending) >= self.wanted:
                break
            ident = secrets.token_hex(6)
            making = functools.partial(self._make, self.order, ident)
            self._pending[ident] = now, Background(making, f"proofbox pool {ident}")

    async def _watch(self) -> None:
        look_at = monotonic()
        while True:
            if monotonic() >= look_at:
                await self._follow()
                self._sweep(monotonic())
                look_at = monotonic() + TICK
                self._tell()
            self.fill()
            due = min(look_at, self._retry_at) if self._retry_at > monotonic() else look_at
            with anyio.move_on_after(max(0.0, due - monotonic())):
                await self.news.wait()

    async def _follow(self) -> None:
        """The template's name may mean another digest by now."""
        begun = monotonic()
        try:
            self.turn_to(await self._understand())
        except ProofboxError as error:
            self._failed(error, begun)

    def _sweep(self, now: float) -> None:
        """Lets go what nobody shall get."""
        self._leaving = {life for life in self._leaving if life.state != "ended"}
        for member in list(self._idle):
            if member.life.state != "live":
                self.sick(member, SandboxLost(f"sandbox {member.life.spec.id} died while it waited", "guest"))
            elif now >= member.until:
                self._let_go(member, "expired")
            elif self._failures and member.since > self._failed_at and now - member.since >= STEADY_SECONDS:
                self.served()
        due = [member for member in self._idle if now - member.looked >= LOOK_SECONDS]
        if due and self._looking is None:
            self._looking = Background(functools.partial(self._look, due), "proofbox pool looks")
        if now - self._needs_since >= NEED_SECONDS:
            self.wanted = max(self.least, self.wanted - (self._unneeded + 1) // 2)
            self._needs_since, self._unneeded = now, len(self._idle)
        while self._idle and len(self._idle) + len(self._pending) > self.wanted:
            self._let_go(self._idle[0], "surplus")

    async def _look(self, due: list[Member]) -> None:
        """Looks at these again, one after the other. It is no use of them: they grow old as before."""
        try:
            for member in due:
                if member not in self._idle or self.order is None:
                    continue
                try:
                    await self._factory.check(self.order, member.life, LOOK_SECONDS, look=True)
                except SandboxLost as lost:
                    # Taken meanwhile it may have ended by its owner's will; what was unclean before is unclean still.
                    if member in self._idle or isinstance(lost, UncleanStart):
                        self.sick(member, lost)
                member.looked = monotonic()
        finally:
            self._looking = None

    async def _make(self, order: Order, ident: str) -> None:
        begun = monotonic()
        try:
            with untimed():
                life = await self._factory.make(order, ident, held=self._keep)
        except Exception as error:
            self._tally.failed += 1
            self._tally.gone["unclean"] += isinstance(error, UncleanStart)
            self._failed(error, begun)
            if not isinstance(error, ProofboxError):
                raise
        else:
            self._stands(life, order)
        finally:
            del self._pending[ident]
            self.fill()
            self._tell()

    def _stands(self, life: Life, order: Order) -> None:
        self._tally.made += 1
        now = monotonic()
        box = self._factory.box(order, life)
        member = Member(life, box, since=now, until=now + self._keep * _about(0.8, 1.0), looked=now)
        if self.closed or order != self.order:
            self._let_go(member, "drained")
        else:
            self._idle.append(member)

    def _failed(self, error: Exception, begun: float) -> None:
        """Something that was begun then went wrong: the next creation waits a while, longer each time."""
        self.error = f"{type(error).__name__}: {error}"
        if begun <= self._failed_at:
            return  # of the same incident as the latest one
        self._failures += 1
        self._failed_at = monotonic()
        pause = min(RETRY_MOST, RETRY_FIRST * 2.0 ** min(self._failures - 1, 20))
        self._retry_at = self._failed_at + pause * _about(0.5, 1.5)
        if self._failures == STUCK_FAILURES:
            log.warning("a pool does not get on: %s", self.error)
        self._tell()

    def _let_go(self, member: Member, why: Gone, error: SandboxLost | None = None) -> None:
        if member in self._idle:
            self._idle.remove(member)
        member.gone = True
        self._tally.gone[why] += 1
        self._leaving.add(member.life)
        member.life.lose(error or SandboxLost(f"sandbox {member.life.spec.id} was never claimed: {why}", "cancelled"))

    def _tell(self) -> None:
        self.news.set()
        self.news = anyio.Event()


def _about(least: float, most: float) -> float:
    """A factor that differs from pool to pool and from member to member: what began together shall not come back
    together.
    """
    return random.uniform(least, most)  # noqa: S311 - nobody gains by guessing it
