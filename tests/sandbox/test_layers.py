"""Several layers at one target, at every runtime that mounts them: the order, what is removed, whose it is."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.conftest import open_host

from proofbox.host.layers import NO_MARKS
from proofbox.kit.tree import remove_tree
from proofbox.model.template import Layer, Template
from proofbox.sandbox.host import Host
from proofbox.templates.store import Store, open_store
from proofbox.templates.unpack import Notes, mark_opaque

pytestmark = [pytest.mark.container, pytest.mark.anyio]


@pytest.fixture(params=["native", "crun"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """This machine with one of them; skipped with the reason where it does not run."""
    async with open_host(request.param) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store of the test's own."""
    yield Store(tmp_path / "home")
    remove_tree(tmp_path / "home")


def bottom(tree: Path) -> Notes:
    """Files to be replaced, removed and hidden."""
    (tree / "data/hidden/deep").mkdir(parents=True)
    for name in ("kept", "replaced", "removed", "hidden/old", "hidden/deep/old"):
        (tree / "data" / name).write_text("bottom")
    (tree / "data/tree").mkdir()
    (tree / "data/tree/leaf").write_text("bottom")
    return Notes()


def top(tree: Path) -> Notes:
    """Replaces one, removes two, and hides what a directory held."""
    (tree / "data/hidden").mkdir(parents=True)
    (tree / "data/replaced").write_text("top")
    (tree / "data/hidden/new").write_text("top")
    mark_opaque(tree / "data/hidden")
    for name in ("removed", "tree"):
        os.mknod(tree / "data" / name, stat.S_IFCHR, 0)
    return Notes()


def stacked(store: Store, *fills: Callable[[Path], Notes]) -> Template:
    """The host's template with more layers over its root, the first one on top."""
    base = open_store().resolve("host")
    digests = [store.put_layer(fill) for fill in fills]
    more = tuple(Layer("/", str(store.layers.tree(digest)), digest) for digest in digests)
    return msgspec.structs.replace(base, digest="sha256:" + "1" * 64, name="stacked", layers=(*more, *base.layers))


async def test_a_layer_replaces_removes_and_hides_what_is_below_it(host: Host, store: Store) -> None:
    """The first layer of a target is on top; whiteouts and opaque marks work for whoever mounts it."""
    shown = "cd /data; cat kept replaced; find . | sort; ls -A hidden"
    async with host.open_sandbox(stacked(store, top, bottom)) as box:
        result = await box.run(shown)
    assert result.stdout == "bottomtop.\n./hidden\n./hidden/new\n./kept\n./replaced\nnew\n", result.stderr


async def test_the_other_order_shows_the_other_content(host: Host, store: Store) -> None:
    """What a layer removes is not removed from those above it."""
    async with host.open_sandbox(stacked(store, bottom, top)) as box:
        result = await box.run("cd /data; cat replaced removed tree/leaf hidden/old hidden/new")
    assert result.stdout == "bottombottombottombottomtop", result.stderr


async def test_what_is_removed_or_hidden_can_be_made_again(host: Host, store: Store) -> None:
    """Removal is no mark that stays in the way, and the layers themselves are not written."""
    if NO_MARKS in host.probe.notes:
        pytest.skip(NO_MARKS)
    template = stacked(store, top, bottom)
    async with host.open_sandbox(template) as box:
        result = await box.run("cd /data; mkdir tree && ls -A tree; echo new > removed && rm -r hidden && cat removed")
    assert (result.stdout, result.returncode) == ("new\n", 0), result.stderr
    async with host.open_sandbox(template) as box:
        assert (await box.run("cat /data/removed")).returncode == 1
