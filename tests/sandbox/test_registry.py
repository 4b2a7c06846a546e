"""Which runtime is taken, and why one is not."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput, Refused
from proofbox.host.owner import Owner
from proofbox.model.spec import Level
from proofbox.runtime import registry
from proofbox.runtime.contract import Missing, Probe
from proofbox.runtimes.fake import FakeRuntime
from proofbox.sandbox.host import _hosts

pytestmark = pytest.mark.anyio


class Stated(FakeRuntime):
    """A runtime that is what it is told to be."""

    probed = 0

    def __init__(self, name: str, level: Level, *, usable: bool = True, reaches: Level | None = None) -> None:
        super().__init__()
        self.name = name
        self.level = level
        self._usable = usable
        self._reaches = reaches or level

    async def probe(self) -> Probe:
        self.probed += 1
        return Probe(
            usable=self._usable,
            level=self._reaches,
            enforces=frozenset(),
            networks=frozenset({"none"}),
            users=True,
            missing=() if self._usable else (Missing("no /dev/kvm", "modprobe kvm"),),
        )


@pytest.fixture
async def stated() -> AsyncIterator[list[str]]:
    """Names that a test registers; taken back in the end. Our own runtimes of an isolating level are out of the way."""
    for host in list(_hosts.values()):  # what other tests have used of them is ended, not dropped
        await host.aclose()
    names: list[str] = []
    for own, (level, _) in registry.BUILT_IN.items():
        if level != "none":
            put(names, Stated(own, level, usable=False))
    yield names
    for name in names:
        registry.unregister(name)


def put(names: list[str], runtime: Stated) -> Stated:
    """Registers it."""
    registry.register(runtime.name, lambda owner: runtime)
    names.append(runtime.name)
    return runtime


async def test_the_weakest_level_that_suffices_is_taken(stated: list[str]) -> None:
    """A virtual machine is not started where a container was asked for, and can be had."""
    put(stated, Stated("machine", "vm"))
    put(stated, Stated("kernel", "user-kernel"))
    assert (await registry.select(level="container"))[0].name == "kernel"
    assert (await registry.select(level="vm"))[0].name == "machine"


async def test_there_is_no_silent_step_down(stated: list[str]) -> None:
    """Where nothing reaches the level, every candidate's missing item and its remedy are named."""
    put(stated, Stated("machine", "vm", usable=False))
    put(stated, Stated("kernel", "user-kernel"))
    with pytest.raises(Refused, match="machine: no /dev/kvm \\(modprobe kvm\\)"):
        await registry.select(level="vm")
    with pytest.raises(Refused, match="below 'vm'"):
        await registry.select("kernel", "vm")


async def test_a_runtime_that_does_not_reach_its_level_here_is_passed_over(stated: list[str]) -> None:
    """What a runtime says of itself and what its probe found are two things."""
    put(stated, Stated("machine", "vm", reaches="container"))
    with pytest.raises(Refused, match="reaches only level 'container'"):
        await registry.select(level="vm")


@pytest.mark.parametrize("level", ["none", "container"])
async def test_no_isolation_needs_a_word(level: Level) -> None:
    """``process`` runs model code with the caller's rights: it is refused until that was said to be wanted."""
    with pytest.raises(Refused, match="allow_unisolated"):
        await registry.select("process", level)


async def test_a_probe_is_asked_once(stated: list[str]) -> None:
    """It may have run a real sandbox."""
    runtime = put(stated, Stated("kernel", "user-kernel"))
    for _ in range(3):
        await registry.select("kernel", "user-kernel")
    assert runtime.probed == 1


async def test_an_unknown_name_lists_the_known_ones() -> None:
    """A typing error is told from a missing feature."""
    with pytest.raises(InvalidInput, match=r"no runtime 'nativ'.*native"):
        await registry.select("nativ")
    with pytest.raises(InvalidInput, match="level"):
        await registry.select(level="containr")  # type: ignore[arg-type]


def test_our_own_names_are_those_of_the_package() -> None:
    """What the registry knows without asking is what the package says that it brings."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][registry.GROUP] == {name: where for name, (_, where) in registry.BUILT_IN.items()}


async def test_two_packages_with_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them isolates must not depend on the order of installation."""
    points = [EntryPoint("box", f"{module}:Runtime", registry.GROUP) for module in ("first", "second")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(InvalidInput, match=r"first:Runtime.*second:Runtime"):
        registry.runtime("box")


async def test_a_package_that_cannot_be_loaded_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import error is the reason, and other runtimes go on."""
    points = [EntryPoint("box", "no_such_module:Runtime", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(Refused, match="no_such_module"):
        registry.runtime("box")


async def test_there_is_one_instance_and_one_owner_in_a_process() -> None:
    """Sandboxes of one process are all named by one record."""
    assert registry.runtime("fake") is registry.runtime("fake")
    assert isinstance(registry.owner(), Owner)
    assert registry.owner() is registry.owner()
