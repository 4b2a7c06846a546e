"""Warm pools: sandboxes that are made ahead, handed out once, and destroyed after.

A member is like any sandbox that is made when it is asked for: it has run nothing, and its limits on time start when it
is handed out. It goes to nobody who asked for anything else than it was made as. Members are sandboxes of this process
and end with it, however it ends.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any, Final

import anyio

from proofbox.errors import Busy, InvalidInput, SandboxLost
from proofbox.kit.clock import paused
from proofbox.kit.loop import Background
from proofbox.model.limits import Limits
from proofbox.model.spec import Network, Volume
from proofbox.model.template import Template
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.factory import AT_ONCE, Factory
from proofbox.sandbox.given import as_count, as_seconds
from proofbox.sandbox.isolation import tell
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.members import Member, Members
from proofbox.sandbox.order import Asked, Order
from proofbox.sandbox.pool_stats import PoolStats, Tally, latency

SIZE_MOST: Final = 10_000
KEEP: Final = 300.0
FILLING: Final = 2
"""Members of one pool that are in the making at one time: its refill leaves room for who waits for a sandbox now."""
CHECK_SECONDS: Final = 1.0
"""How long one claim may wait for members to answer, before it gets a cold sandbox."""


class Pool:
    """Members of one order, in one event loop. Made by ``Host.pool``. Any number of tasks may claim at once."""

    def __init__(
        self,
        factory: Factory,
        understand: Callable[[Asked, Order | None], Awaitable[Order]],
        asked: Asked,
        *,
        size: tuple[int, int],
        keep: float,
        at_once: int,
    ) -> None:
        most = as_count(size[1], "the most members of a pool", SIZE_MOST, 1)
        self._factory = factory
        self._understand = understand
        self._asked = asked
        self._tally = Tally()
        self._members = Members(
            factory,
            lambda: understand(asked, None),
            self._tally,
            least=as_count(size[0], "the least members of a pool", most),
            most=most,
            keep=as_seconds(keep, "keep"),
            at_once=as_count(at_once, "at_once", AT_ONCE, 1),
        )
        self._closing: Background | None = None

    async def open(self) -> None:
        """Begins to fill it. Raises what ``Host.open_sandbox`` would, for what can be told before anything is made."""
        await self._members.open()

    def claim(
        self,
        *,
        cold: bool = True,
        template: str | Template | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        volumes: Sequence[Volume] | None = None,
        hostname: str | None = None,
        seed: str | int | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for the length of the ``async with``, as from ``Host.open_sandbox``: a member that has answered
        just now, else one that is made now. Nobody else has had it, nobody else gets it.

        What is given here goes over what the pool was opened with; if that makes another sandbox of it, no member
        serves. With ``cold=False`` nothing is made now: ``Busy`` where no member stands, with the pool's latest
        failure. Otherwise it raises what ``Host.open_sandbox`` raises, and ``InvalidInput`` once the pool is closed.
        Cancelled, the member goes back if nobody has had it, and is destroyed otherwise.
        """
        given: dict[str, Any] = {
            "template": template,
            "limits": limits,
            "network": network,
            "user": user,
            "env": env,
            "cwd": cwd,
            "volumes": volumes,
            "hostname": hostname,
            "seed": seed,
        }
        differing = {name: value for name, value in given.items() if value is not None}
        return self._claim(replace(self._asked, **differing) if differing else self._asked, cold)

    async def ready(self, timeout: float | None = None) -> PoolStats:
        """Waits until as many members stand as are wanted, it is stuck or closed, or so many seconds have passed."""
        with anyio.move_on_after(None if timeout is None else as_seconds(timeout, "timeout", zero=True)):
            while self._members.state == "filling":
                await self._members.news.wait()
        return self.stats()

    def stats(self) -> PoolStats:
        """This moment's."""
        members, tally = self._members, self._tally
        return PoolStats(
            state=members.state,
            error=members.error,
            ready=members.standing,
            pending=members.pending,
            claimed=tally.claimed,
            wanted=members.wanted,
            least=members.least,
            most=members.most,
            hits=tally.hits,
            misses=tally.misses,
            other=tally.other,
            made=tally.made,
            failed=tally.failed,
            unhealthy=tally.gone["unhealthy"],
            unclean=tally.gone["unclean"],
            expired=tally.gone["expired"],
            drained=tally.gone["drained"],
            surplus=tally.gone["surplus"],
            warm=latency(tally.warm),
            cold=latency(tally.cold),
        )

    async def aclose(self) -> None:
        """Destroys all members that stand or are being made. What was claimed stays with its claimant, until the end of
        its own ``async with``. Idempotent; finishes when cancelled too.
        """
        if self._closing is None:
            self._closing = Background(self._members.close, "proofbox pool closes")
        await self._closing.finish()

    @asynccontextmanager
    async def _claim(self, asked: Asked, cold: bool) -> AsyncIterator[Sandbox]:
        begun = perf_counter()
        with paused():  # who is timed does not pay for what the pool does
            if self._closing is not None or self._members.order is None:
                raise InvalidInput("this pool is closed: claim inside of its `async with`")
            own = asked is self._asked
            order = await self._understand(asked, self._members.order if own else None)
            if own:
                self._members.turn_to(order)
            life, box = await self._warm(order) or await self._cold(order, cold)
        life.timings["claim"] = perf_counter() - begun
        self._tally.claimed += 1
        try:
            tell(life)
            yield box
        finally:
            self._tally.claimed -= 1
            with paused():  # nor for the end of it
                await life.end()

    async def _warm(self, order: Order) -> tuple[Life, Sandbox] | None:
        """The oldest member that serves, its clocks started; None if there is none, or if it is not what is wanted."""
        members = self._members
        if order != members.order:
            self._tally.other += 1
            return None
        begun = perf_counter()
        late = monotonic() + CHECK_SECONDS
        while monotonic() < late and (member := members.take()) is not None:
            if await self._serves(member, order, late - monotonic()):
                member.life.begin()
                self._tally.hits += 1
                self._tally.warm.append(perf_counter() - begun)
                members.served()
                return member.life, member.box
        self._tally.misses += 1
        members.missed()
        return None

    async def _serves(self, member: Member, order: Order, seconds: float) -> bool:
        """A round trip to its guest, which tells what the sandbox is by now. Whoever does not answer, or is not what it
        was, is destroyed, and counted.
        """
        try:
            await self._factory.check(order, member.life, seconds, look=order.verify_start)
        except SandboxLost as lost:
            self._members.sick(member, lost)
            return False
        except BaseException:
            await self._members.give_back(member)
            raise
        return True

    async def _cold(self, order: Order, allowed: bool) -> tuple[Life, Sandbox]:
        if not allowed:
            members = self._members
            counts = f"{members.pending} of {members.wanted} are being made"
            failure = f"; latest failure: {members.error}" if members.error else ""
            raise Busy(f"the pool of {order.template.name!r} has no such member ready ({counts}){failure}; claim later")
        begun = perf_counter()
        life = await self._factory.make(order, secrets.token_hex(6))
        self._tally.cold.append(perf_counter() - begun)
        return life, self._factory.box(order, life)
