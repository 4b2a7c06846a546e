"""Finds runtimes by name, and the best one of a level. One instance of each in a process.

Names come from three places, the first one that has a name wins: ``register`` in this process, Proofbox's own, the
entry point group ``proofbox.runtimes`` of other packages (two of them with one name are an error). What a name leads to
is called with this process's ``Owner`` and gives a ``Runtime``. A name like ``oci:/path`` leads to what
``oci`` leads to, called with what follows the colon as well.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from time import perf_counter
from typing import Final

import anyio
import anyio.to_thread

from proofbox.errors import InvalidInput, Refused
from proofbox.host.owner import Owner
from proofbox.host.remedies import explain, is_threadless
from proofbox.kit.forked import OfProcess
from proofbox.model.spec import LEVELS, Level
from proofbox.runtime import kept
from proofbox.runtime.contract import CanRecall, Missing, Probe, Runtime

GROUP: Final = "proofbox.runtimes"

Factory = Callable[[Owner], Runtime]

BUILT_IN: Final[dict[str, tuple[Level, str]]] = {
    "process": ("none", "proofbox.runtimes.process:ProcessRuntime"),
    "fake": ("none", "proofbox.runtimes.fake:FakeRuntime"),
    "native": ("container", "proofbox.runtimes.native:NativeRuntime"),
    "oci": ("container", "proofbox.runtimes.oci:OciRuntime"),
    "crun": ("container", "proofbox.runtimes.oci:crun"),
    "runc": ("container", "proofbox.runtimes.oci:runc"),
    "microvm": ("vm", "proofbox.runtimes.microvm:MicrovmRuntime"),
    "runsc": ("user-kernel", "proofbox.runtimes.oci:runsc"),
}
"""Best first within a level."""

TAKES_MORE: Final = frozenset({"oci"})
"""Names that may be followed by a colon and more."""

_explicit: Final[dict[str, Factory]] = {}


@dataclass(slots=True)
class _Process:
    """What it has found and made."""

    owner: Owner | None = None
    runtimes: dict[str, Runtime] = field(default_factory=dict)
    probes: dict[str, Probe] = field(default_factory=dict)


_mine: Final = OfProcess(_Process)
"""A fork has sandboxes, launchers and a record of its own."""


def owner() -> Owner:
    """This process's owner record, made at the first call. Raises ``StoreFailed``."""
    mine = _mine()
    if mine.owner is None:
        mine.owner = Owner.register()
        atexit.register(_forget, mine.owner, os.getpid())
    return mine.owner


def _forget(owner: Owner, pid: int) -> None:
    if pid == os.getpid():
        owner.forget()


def register(name: str, factory: Factory) -> None:
    """Makes ``factory`` what ``name`` means in this process, over every other runtime of that name."""
    _explicit[name] = factory
    mine = _mine()
    mine.runtimes.pop(name, None)
    mine.probes.pop(name, None)


def unregister(name: str) -> None:
    """Takes back ``register``. Idempotent."""
    _explicit.pop(name, None)
    mine = _mine()
    mine.runtimes.pop(name, None)
    mine.probes.pop(name, None)


def names() -> tuple[str, ...]:
    """Every name that ``runtime`` knows; ours first, best first. Raises ``InvalidInput`` as ``runtime`` does."""
    return tuple(dict.fromkeys([*BUILT_IN, *_explicit, *sorted(_third_party())]))


def runtime(name: str) -> Runtime:
    """This process's runtime of that name.

    Raises ``InvalidInput`` for an unknown name and for one that two packages claim, ``Refused`` if its code cannot be
    loaded.
    """
    mine = _mine()
    found = mine.runtimes.get(name)
    if found is None:
        found = mine.runtimes[name] = _factory(name)(owner())
    return found


def another(name: str) -> Runtime:
    """A runtime of that name of the caller's own, which the caller closes. Raises as ``runtime``."""
    return _factory(name)(owner())


async def probe(name: str, *, fresh: bool = False) -> Probe:
    """What that runtime says of this host; asked once in a process, and not even once where a slow one was asked before
    and nothing has changed since. ``fresh`` asks in any case. Raises as ``runtime``. Cancelling it keeps nothing.
    """
    mine = _mine()
    found = None if fresh else mine.probes.get(name)
    if found is None:
        try:
            found = mine.probes[name] = await _asked(name, fresh)
        except RuntimeError as error:
            if not is_threadless(error):
                raise
            return _without_threads(runtime(name), str(error))
    return found


def _without_threads(asked: Runtime, why: str) -> Probe:
    missing = (Missing(*explain(why)),)
    return Probe(False, asked.level, frozenset(), frozenset(), users=False, missing=missing)


async def _asked(name: str, fresh: bool) -> Probe:
    asked = runtime(name)
    recalling = asked if isinstance(asked, CanRecall) else None
    if recalling is None:
        return await asked.probe()
    facts = await anyio.to_thread.run_sync(lambda: kept.facts(recalling.rests_on()))
    known = None if fresh else await anyio.to_thread.run_sync(kept.recall, name, facts)
    if known is not None:
        recalling.recall(known)
        return known
    begun = perf_counter()
    found = await asked.probe()
    if found.usable and perf_counter() - begun >= kept.SLOW:
        await anyio.to_thread.run_sync(kept.keep, name, facts, found)
    else:
        kept.drop(name)
    return found


def distrust(name: str) -> None:
    """Forgets what the runtime said of this host, in this process and on disk: it made no sandbox where it had said
    that it could. Whoever selects it next asks it again. Idempotent.
    """
    _mine().probes.pop(name, None)
    kept.drop(name)


async def select(
    name: str | None = None, level: Level = "container", *, allow_unisolated: bool = False
) -> tuple[Runtime, Probe]:
    """The named runtime, or the best usable one of at least ``level``: the weakest level that suffices, best first.

    Raises ``Refused`` with an item for everything that is missing. Never a runtime below ``level``, and one without any
    isolation only with ``allow_unisolated``.
    """
    if level not in LEVELS:
        raise InvalidInput(f"level {level!r} is none of {', '.join(LEVELS)}")
    if name is not None:
        return await _named(name, level, allow_unisolated)
    missing: list[str] = []
    for candidate in _candidates(level):
        try:
            found = await _usable(candidate, level, allow_unisolated)
            if not found[1].by_name_only:
                return found
            missing.append(f"{candidate}: only where it is asked for by name: {'; '.join(found[1].notes)}")
        except Refused as refused:
            missing += (f"{candidate}: {item}" for item in refused.missing)
    raise Refused(f"a sandbox of level {level!r}", tuple(missing) or ("no runtime of that level is installed",))


async def close() -> None:
    """Ends what the runtimes of this process run for themselves and forgets the owner. A later use starts afresh.

    All of their sandboxes must be destroyed before. Idempotent.
    """
    mine = _mine()
    runtimes, mine.runtimes = list(mine.runtimes.values()), {}
    with anyio.CancelScope(shield=True):
        for each in runtimes:
            await each.close()
    if mine.owner is not None and not mine.runtimes:
        mine.owner.forget()
        mine.owner = None
        mine.probes.clear()


async def _named(name: str, level: Level, allow_unisolated: bool) -> tuple[Runtime, Probe]:
    found = runtime(name)
    # Level "container" is what a caller gets who said nothing: naming a weaker runtime needs one word more, not two.
    wanted = "none" if level == "container" and allow_unisolated and found.level == "none" else level
    return await _usable(name, wanted, allow_unisolated)


async def _usable(name: str, level: Level, allow_unisolated: bool) -> tuple[Runtime, Probe]:
    found = runtime(name)
    if found.level == "none" and not allow_unisolated:
        raise Refused(
            f"runtime {name!r}",
            ("it isolates nothing: code in it can do whatever you can (say allow_unisolated=True if it is your own)",),
        )
    if LEVELS.index(found.level) < LEVELS.index(level):
        raise Refused(f"runtime {name!r}", (f"its level is {found.level!r}, below {level!r} that was asked for",))
    seen = await probe(name)
    if not seen.usable:
        raise Refused(f"runtime {name!r}", tuple(str(item) for item in seen.missing) or ("its probe failed",))
    if LEVELS.index(seen.level) < LEVELS.index(level):
        reached = f"on this host it reaches only level {seen.level!r}, not {level!r}"
        raise Refused(f"runtime {name!r}", (f"{reached} (`proofbox doctor --runtime {name}` says why)",))
    return found, seen


def _candidates(level: Level) -> list[str]:
    """Names of at least that level, in the order of preference. Loads other packages' runtimes, as only they know
    theirs.
    """
    ranked: list[tuple[int, int, str]] = []
    for order, name in enumerate(names()):
        if name in BUILT_IN and name not in _explicit:
            known: Level = BUILT_IN[name][0]
        else:
            known = runtime(name).level
        if LEVELS.index(known) >= LEVELS.index(level):
            ranked.append((LEVELS.index(known), order, name))
    return [name for _, _, name in sorted(ranked)]


def _third_party() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.dist is not None and point.dist.name == "proofbox":
            continue
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise InvalidInput(
                f"two packages offer a runtime {point.name!r}: {_package(other)} ({other.value}) and "
                f"{_package(point)} ({point.value}); uninstall one of them"
            )
        found[point.name] = point
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed package"


def _factory(name: str) -> Factory:
    if name in _explicit:
        return _explicit[name]
    base, mark, more = name.partition(":")
    if mark and base in TAKES_MORE:
        return partial(_loaded_factory(base), binary=more)
    return _loaded_factory(name)


def _loaded_factory(name: str) -> Callable[..., Runtime]:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name][1].partition(":")
    else:
        point = _third_party().get(name)
        if point is None:
            raise InvalidInput(f"no runtime {name!r} is installed (known: {', '.join(names())})")
        module, attribute = point.module, point.attr
    try:
        factory: Callable[..., Runtime] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        missing = Missing(f"its code cannot be loaded: {error}", "install the package that brings it again")
        raise Refused(f"runtime {name!r}", (str(missing),)) from error
    return factory
