"""A store of its own for each test, and builds in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.templates.registries import Registry, serving

from proofbox.build.builder import Wanted, build
from proofbox.build.dockerfile import parse
from proofbox.build.events import BasePulled, Event, StepEnded, StepOutput
from proofbox.errors import Refused
from proofbox.kit.tree import remove_tree
from proofbox.model.template import Template
from proofbox.sandbox.host import Host
from proofbox.templates.store import Store, open_store
from proofbox.templates.view import View

pytest.importorskip("dockerfile")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Sandboxes do not care."""
    return "asyncio"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store of the builds of one file: steps that are alike in two of its tests are kept from one to the other."""
    home = tmp_path_factory.mktemp("store") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROOFBOX_HOME", str(home))
        yield open_store()
        open_store().close()
    remove_tree(home)


@pytest.fixture(scope="module")
async def native(anyio_backend: str) -> AsyncIterator[Host]:
    """What can freeze and snapshot; skipped with the reason where it does not run."""
    try:
        host = await Host.local("native")
    except Refused as refused:
        pytest.skip(str(refused))
    yield host
    await host.aclose()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry on loopback; skipped where its package or skopeo is not installed."""
    with serving(tmp_path_factory.mktemp("registry")) as found:
        yield found


@dataclass
class Builds:
    """Builds in ``store`` from the directory ``context``, and what they told."""

    store: Store
    context: Path
    host: Host | None = None
    events: list[Event] = field(default_factory=list)

    async def __call__(self, text: str, name: str | None = None, **wanted: Any) -> Template:
        """Builds a Dockerfile; ``wanted`` as in ``Wanted``."""
        self.events.clear()
        network = wanted.pop("network", "none")
        recipe = parse(text, target=wanted.pop("target", None), network=network)
        return await build(
            recipe, Wanted(context=self.context, **wanted), name, tell=self.events.append, host=self._host
        )

    async def _host(self) -> Host:
        assert self.host is not None, "a step ran that was to be kept"
        return self.host

    @property
    def kept(self) -> list[bool]:
        """Of each step of the latest build."""
        return [event.kept for event in self.events if isinstance(event, StepEnded)]

    @property
    def output(self) -> bytes:
        """What the steps of the latest build wrote."""
        return b"".join(event.data for event in self.events if isinstance(event, StepOutput))

    @property
    def pulled(self) -> list[str]:
        """The bases that the latest build pulled."""
        return [event.reference for event in self.events if isinstance(event, BasePulled)]

    def add(self, name: str, content: str = "") -> Path:
        """A file of the context."""
        file = self.context / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file


@pytest.fixture
def copies(store: Store, tmp_path: Path) -> Builds:
    """Builds in which nothing runs."""
    (tmp_path / "context").mkdir()
    return Builds(store, tmp_path / "context")


@pytest.fixture
def builds(copies: Builds, native: Host) -> Builds:
    """Builds in real sandboxes."""
    copies.host = native
    return copies


def text(template: Template, path: str) -> str | None:
    """The content of a file of it; None if it is not there."""
    found = View.of(template).read(path)
    return None if found is None else found.decode()
